-- After the end: keep it longer or shorter, or reopen it with all that ended because of it.
O = {}

-- the job, what it doomed, every ancestor that failed because of a child; of each, what that doomed
local function would_reopen(r)
  local found, known, stack = { r }, { [r.id] = true }, { r }
  while #stack > 0 do
    local each = table.remove(stack)
    local related = {}
    local downs = E.downs(each.id)
    B.load(downs)
    for _, down in ipairs(downs) do
      local d = B.get(down)
      if d and d.reason == 'upstream' and d.state == CANCELLED then related[#related + 1] = d end
    end
    local parent = each.j.parent and B.get(each.j.parent)
    if parent and parent.state == FAILED and parent.reason == 'children' then related[#related + 1] = parent end
    for _, other in ipairs(related) do
      if not known[other.id] then
        known[other.id] = true
        found[#found + 1], stack[#stack + 1] = other, other
      end
    end
  end
  return found
end

-- who waits still, and has counted this ending, waits for the next one
local function uncount(up, down)
  local open, soft, version = E.edge_of(up.id, down)
  local r = B.get(down)
  if not r or r.state ~= WAITING or open or soft or version ~= r.version then return end
  E.open_again(up.id, down, soft, version)
  if not r.slack or up.state == SUCCEEDED then r.pending = r.pending + 1 else r.slack = r.slack + 1 end
  B.put(r)
end

local function reopen(r)
  local j = r.j
  if j.key then call('HSET', ns .. ':keys', j.key, r.id) end
  r.ran = j.ran or r.reason == 'children'
  r.deadline_at, r.due_at = nil, nil
  if j.deadline then r.deadline_at = now + j.deadline end
  if not r.ran then r.due_at = r.deadline_at end
  r.version, r.state, r.attempt, r.lost, r.round, r.worker = r.version + 1, WAITING, 0, 0, r.round + 1, nil
  r.result, r.value, r.error, r.reason, r.joined_at, r.started_at = nil, nil, nil, nil, nil, nil
  r.ended_at, r.expires_at, r.updated_at = nil, nil, now
  B.put(r)
end

-- what it waits for now: those of its upstreams that were reopened have to end again
local function recount(r)
  local need, slack = r.j.need, r.j.slack
  if r.ran and not r.j.ran then need, slack = nil, nil end
  r.pending, r.slack = E.needed(need, r.after), E.tolerated(slack, need, r.after)
  B.put(r)
  for _, up in ipairs(r.after) do E.drop_edge(up, r.id) end
  E.watch_ups(r, r.after)
end

function O.merged(memo, more)
  if #more == 0 then return memo end
  local list, at = {}, {}
  for _, from in ipairs({ memo, more }) do
    for _, pair in ipairs(from) do
      local place = at[pair[1]] or #list + 1
      list[place], at[pair[1]] = pair, place
    end
  end
  return list
end

-- the nonce of a person's act in a memo
function O.act_in(memo)
  for _, pair in ipairs(memo) do
    if pair[1] == 'treadle:act' then return pair[2] end
  end
end

function O.after_the_end(r, out)
  if out.state == r.state and out.keep then
    r.memo = O.merged(r.memo, out.memo)
    if O.act_in(out.memo) then r.version = r.version + 1 end    -- the next act must have seen this one
    r.expires_at = E.expires_at(r, r.state, r.ended_at or now, out.keep)
    B.put(r)
    return 'applied'
  end
  if out.state ~= READY then return 'stale', 'it is ' .. STATES[r.state] .. ' at version ' .. r.version end
  local found = would_reopen(r)
  for _, each in ipairs(found) do
    local holder = each.j.key and E.holder(each.j.key)
    if holder and holder ~= each.id then
      return 'held', each.j.key, E.within(out.reach, B.get(holder).j.queue) and holder or ''
    end
  end
  for _, each in ipairs(found) do
    for _, down in ipairs(E.downs(each.id)) do uncount(each, down) end
  end
  r.memo = O.merged(r.memo, out.memo)
  for _, each in ipairs(found) do reopen(each) end
  r.pending = 0
  if out.delay > 0 then E.schedule(r, now + out.delay) else B.join(r, now) end
  for k = 2, #found do recount(found[k]) end
  return 'applied'
end
