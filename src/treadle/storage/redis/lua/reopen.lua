-- Applies outcomes to ended jobs: changes how long a row is kept, or reopens a job with all that ended because of it.
O = {}

-- the job, the jobs that its ending doomed, each ancestor that failed because of a child, and the jobs doomed by those
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

-- A job that still waits and has counted this ending waits for it again.
local function uncount(up, down)
  local open, soft, version = E.edge_of(up.id, down)
  local r = B.get(down)
  if not r or r.state ~= WAITING or open or soft or version ~= r.version then return end
  E.open_again(up.id, down, soft, version)
  if not r.failures_allowed or up.state == SUCCEEDED then r.pending = r.pending + 1 else r.failures_allowed = r.failures_allowed + 1 end
  B.put(r)
end

local function reopen(r)
  local j = r.j
  if j.key then call('HSET', ns .. ':keys', j.key, r.id) end
  r.function_done = j.function_done or r.reason == 'children'
  r.deadline_at, r.due_at = nil, nil
  if j.deadline then r.deadline_at = now + j.deadline end
  if not r.function_done then r.due_at = r.deadline_at end
  r.version, r.state, r.attempt, r.lost, r.reopenings, r.worker = r.version + 1, WAITING, 0, 0, r.reopenings + 1, nil
  r.result, r.value, r.error, r.reason, r.return_position, r.started_at = nil, nil, nil, nil, nil, nil
  r.ended_at, r.expires_at, r.updated_at = nil, nil, now
  B.put(r)
end

-- Start its wait again: the upstreams that were reopened have to end again.
local function recount(r)
  local required, failures_allowed = r.j.required, r.j.failures_allowed
  if r.function_done and not r.j.function_done then required, failures_allowed = nil, nil end
  r.pending, r.failures_allowed = E.needed(required, r.after), E.tolerated(failures_allowed, required, r.after)
  B.put(r)
  for _, up in ipairs(r.after) do E.drop_edge(up, r.id) end
  E.watch_ups(r, r.after, true)
end

function O.merged(checkpoints, more)
  if #more == 0 then return checkpoints end
  local list, at = {}, {}
  for _, from in ipairs({ checkpoints, more }) do
    for _, pair in ipairs(from) do
      local position = at[pair[1]] or #list + 1
      list[position], at[pair[1]] = pair, position
    end
  end
  return list
end

-- the nonce of an act among checkpoints
function O.act_in(checkpoints)
  for _, pair in ipairs(checkpoints) do
    if pair[1] == 'treadle:act' then return pair[2] end
  end
end

function O.after_the_end(r, out)
  if out.state == r.state and out.keep then
    r.checkpoints = O.merged(r.checkpoints, out.checkpoints)
    if O.act_in(out.checkpoints) then r.version = r.version + 1 end    -- the next act must name the new version
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
  r.checkpoints = O.merged(r.checkpoints, out.checkpoints)
  for _, each in ipairs(found) do reopen(each) end
  r.pending = 0
  if out.delay > 0 then E.schedule(r, now + out.delay) else B.join(r, now) end
  for k = 2, #found do recount(found[k]) end
  return 'applied'
end
