-- Ends jobs, counts the ending for the jobs that wait for it, releases waiting jobs, and keeps track of keys.
E = {}
local KEEP_LEAST = ${KEEP_LEAST}

-- whether any job waits for another
local function any_parent()
  if E.some == nil then E.some = call('EXISTS', PARENTS) == 1 end
  return E.some
end

local function kids(up) return ns .. ':kids:' .. up end

local function least(a, b)
  if a and b then return math.min(a, b) end
  return a or b
end

-- each id once, in order
local function distinct(after)
  if #after < 2 then return after end
  local list, seen = {}, {}
  for _, up in ipairs(after) do
    if not seen[up] then
      seen[up] = true
      list[#list + 1] = up
    end
  end
  return list
end

-- the number of endings it waits for; a row that `after` names twice ends once
function E.needed(required, after)
  local ups = #distinct(after)
  return required and math.min(required, ups) or ups
end

function E.keeps_key(r)
  local window = r.j.key_window
  return window ~= nil and r.created_at + window > now
end

function E.drop_key(r)
  local key = r.j.key
  if key and call('HGET', ns .. ':keys', key) == r.id then call('HDEL', ns .. ':keys', key) end
end

function E.holder(key, leaving)
  local id = call('HGET', ns .. ':keys', key)
  local r = id and B.get(id)
  if not r or ((r.state >= SUCCEEDED or r.id == leaving) and not E.keeps_key(r)) then return nil end
  return r.id
end

-- not before its key_window is over, because the row holds the key
function E.expires_at(r, state, ended_at, keep)
  if not keep then keep = state == FAILED and r.j.keep_failed or r.j.keep end
  return math.max(ended_at + math.max(keep, KEEP_LEAST), r.created_at + (r.j.key_window or 0))
end

-- End a job. `count_endings` counts the ending for the jobs that wait, before the call is over.
function E.finish(r, state, reason, error, keep)
  if not E.keeps_key(r) then E.drop_key(r) end
  r.version, r.state, r.reason, r.error, r.queue_position, r.blocked_on, r.pending = r.version + 1, state, reason, error, nil, nil, 0
  r.due_at, r.updated_at, r.ended_at, r.expires_at = nil, now, now, E.expires_at(r, state, now, keep)
  B.put(r)
  local endings = B.endings
  endings[#endings + 1] = { r.id, state }
  A.unblock_for(r)
end

function E.schedule(r, run_at)
  r.state, r.pending, r.queue_position, r.blocked_on, r.return_position = READY, 0, nil, nil, nil
  r.due_at = run_at
  if not r.function_done then r.due_at = least(run_at, r.deadline_at) end
  B.put(r)
  B.topics['queue:' .. r.j.queue] = true
end

-- End the wait: queue the job now, or schedule it for the end of its delay. A promise keeps waiting.
function E.release(r)
  local delay = r.j.delay or 0
  if r.j.task == '' then
    B.put(r)
  elseif not r.started_at and not r.function_done and delay > 0 and r.created_at + delay > now then
    E.schedule(r, r.created_at + delay)
  else
    r.pending = 0
    B.join(r, now)
  end
end

-- an edge: open (the ending is not counted yet), soft (any ending counts as success), the version when the wait began
local function edge(up, down, open, soft, version)
  call('HSET', kids(up), down, (open and '1' or '0') .. (soft and '1' or '0') .. version)
  call('SADD', PARENTS, up)
  E.some = true
end

function E.edge_of(up, down)
  local found = call('HGET', kids(up), down)
  if found then return byte(found) == 49, byte(found, 2) == 49, tonumber(sub(found, 3)) end
end

function E.set_edge(up, down, open, soft, version) edge(up, down, open, soft, version) end

function E.open_again(up, down, soft, version) edge(up, down, true, soft, version) end

function E.drop_edge(up, down)
  if call('HDEL', kids(up), down) == 1 and call('EXISTS', kids(up)) == 0 then call('SREM', PARENTS, up) end
end

local function count_down(up, down, state)
  local open, soft, version = E.edge_of(up, down)
  if not open then return end
  edge(up, down, false, soft, version)
  local r = B.get(down)
  if not r or r.state ~= WAITING or r.version ~= version then return end
  if soft or not r.failures_allowed or state == SUCCEEDED then r.pending = r.pending - 1 else r.failures_allowed = r.failures_allowed - 1 end
  if r.pending <= 0 then
    E.release(r)
  elseif not r.failures_allowed or r.failures_allowed >= 0 then
    B.put(r)
  elseif not r.started_at and not r.function_done then
    E.finish(r, CANCELLED, 'upstream', up .. ', which it waited for, ended as ' .. STATES[state])
  else
    B.join(r, now)
  end
end

-- A work list instead of recursion, because a chain of any length may be doomed.
function E.count_endings()
  local endings = B.endings
  while #endings > 0 do
    local up, state = endings[#endings][1], endings[#endings][2]
    endings[#endings] = nil
    if any_parent() and call('SISMEMBER', PARENTS, up) == 1 then
      local downs = call('HKEYS', kids(up))
      B.load(downs)
      for _, down in ipairs(downs) do count_down(up, down, state) end
    end
  end
end

-- the number of failures it tolerates, lowered so that enough endings remain for `required`
function E.tolerated(failures_allowed, required, after)
  if not failures_allowed or failures_allowed == 0 or not required then return failures_allowed end
  return math.min(failures_allowed, #distinct(after) - E.needed(required, after))
end

function E.downs(up)
  if call('SISMEMBER', PARENTS, up) == 0 then return {} end
  return call('HKEYS', kids(up))
end

-- this job, and all jobs that wait for it, directly or through others
function E.waiting_for(id)
  local found, look = { [id] = true }, { id }
  while #look > 0 do
    local up = table.remove(look)
    local downs = E.downs(up)
    B.load(downs)
    for _, down in ipairs(downs) do
      local r, open, _, version = B.get(down), E.edge_of(up, down)
      if open and r and not found[down] and r.state == WAITING and r.version == version then
        found[down] = true
        look[#look + 1] = down
      end
    end
  end
  return found
end

-- Wait for these jobs; those that have ended count at once. `again`: it has waited for them before, and those without a
-- row count as successes: nothing says otherwise, and none of them will end.
function E.watch_ups(r, after, again)
  after = distinct(after)
  for _, up in ipairs(after) do edge(up, r.id, true, false, r.version) end
  B.load(after)
  for _, up in ipairs(after) do
    local above = B.get(up)
    local state = above and above.state or again and not above and SUCCEEDED or WAITING
    if state >= SUCCEEDED then count_down(up, r.id, state) end
  end
  E.count_endings()
  if r.state == WAITING and r.pending <= 0 then E.release(r) end
end

-- Take the key -> the job to wait for: the running holder that gave up the key, or the job that the superseded holder
-- waited for. Never `parent`, which may wait for this job, and no job that waits for `parent`.
local function take_key(j, parent)
  local holder = E.holder(j.key)
  call('HSET', ns .. ':keys', j.key, j.id)
  if not holder or holder == parent then return nil end
  local r = B.get(holder)
  if r.state >= SUCCEEDED then return nil end    -- it was stored in this call, and doomed
  if r.function_done or r.state == RUNNING or (r.state == WAITING and r.started_at) then
    if parent and E.waiting_for(parent)[holder] then return nil end
    call('HSET', ns .. ':behind', j.id, holder)
    return holder
  end
  E.finish(r, CANCELLED, 'superseded', 'superseded by ' .. j.id)
  E.count_endings()
  local first = call('HGET', ns .. ':behind', holder)
  local f = first and B.get(first)
  if not f or f.state >= SUCCEEDED or (parent and E.waiting_for(parent)[first]) then return nil end
  call('HSET', ns .. ':behind', j.id, first)
  return first
end

-- --- storing new jobs; `jobs` is a list of { id, body }

-- The error for a job whose id belongs to a job that may not be returned for it; see row_rules.taken_by.
local function refused(jobs)
  local first = {}
  for _, new in ipairs(jobs) do
    local id, body = new[1], new[2]
    local known = first[id]
    if known or B.get(id) then
      local words, j = R.words(body), R.job(id, body)
      local there = known and R.job(id, known) or B.get(id).j
      local own = sub(id, 1, 8) == 'treadle:'
      if not E.within(j.reach, there.queue)
        or (own and (j.queue ~= there.queue or j.root ~= there.root or j.parent ~= there.parent)) then
        return 'beyond', id, words.task or ''
      end
      if words.nonce then
        local other = known and R.words(known) or R.words(call('HGET', JOB, id), true)
        local differ = (words.payload or '[]') ~= (other.payload or '[]')
        local task, asked = other.task or '', words.task or ''
        if words.nonce ~= other.nonce and (differ or task ~= asked) then
          return 'taken', id, task .. '\0' .. asked .. '\0' .. (differ and '1' or '')
        end
      end
    else
      first[id] = body
    end
  end
end

function E.within(reach, queue)
  for _, each in ipairs(reach or {}) do
    if each == queue then return true end
  end
  return not reach or #reach == 0
end

-- the first job that this one names outside its reach; see row_rules.check_reach
local function beyond(j, jobs)
  local named, above = {}, j.parent or j.root
  for k, up in ipairs(j.after) do named[k] = up end
  if above then named[#named + 1] = above end
  B.load(named)
  for _, up in ipairs(named) do
    local r = B.get(up)
    local other = r and r.j
    for k = 1, other and 0 or #jobs do
      if jobs[k][1] == up then other = R.job(up, jobs[k][2]) break end
    end
    if not other or not E.within(j.reach, other.queue) then return up end
    if up == j.parent and j.root ~= (other.root or up) then return j.root or up end
  end
end

-- -> the row that is returned for each job, by id; or nil and what is wrong
function E.answers(jobs, leaving)
  local answers, taken, ids = {}, {}, {}
  for k, new in ipairs(jobs) do ids[k] = new[1] end
  B.load(ids)
  local wrong, id, why = refused(jobs)
  if wrong then return nil, wrong, id, why end
  for _, new in ipairs(jobs) do
    local id = new[1]
    if B.get(id) or answers[id] then
      answers[id] = answers[id] or id
    else
      local j = R.job(id, new[2])
      new[3] = j
      local answer = id
      if j.key then
        local first = taken[j.key]
        local holder = first and first.id or E.holder(j.key, leaving)
        if holder and not E.within(j.reach, (first or B.get(holder).j).queue) then return nil, 'held', j.key, '' end
        if holder and j.conflict == 'raise' then return nil, 'held', j.key, holder end
        local h = holder and B.get(holder)
        if holder and ((j.conflict or 'keep') == 'keep' or (h and h.state >= SUCCEEDED)) then
          answer = holder
        else
          taken[j.key] = j
        end
      end
      answers[id] = answer
    end
  end
  for _, new in ipairs(jobs) do
    local id = new[1]
    local j = answers[id] == id and not B.get(id) and (new[3] or R.job(id, new[2]))
    if j and #(j.reach or '') > 0 then
      local up = beyond(j, jobs)
      if up then return nil, 'unknown', up, id end
    end
    if j and not j.wait_timeout then
      for _, up in ipairs(j.after) do
        if not answers[up] and not B.get(up) then return nil, 'unknown', up, id end
      end
    end
  end
  return answers
end

-- --- outcomes that only the first shard may apply

function E.root_of(r)
  local root = r.j.root
  return root and root ~= '' and root or r.id
end

-- Whether an id is derived from its parent's, so that no other workflow uses it. The same rule as in
-- treadle/core/ids.py: an id that continues a derived one was chosen by a user.
local function is_derived(id)
  if sub(id, 1, 8) ~= 'treadle:' then return false end
  local stem, rest = sub(id, 9, 40), sub(id, 41)
  if #stem < 32 or string.find(stem, '[^0-9a-f]') then return true end
  local process = sub(rest, 1, 13)
  if #process == 13 and string.find(process, '^%-[0-9a-f]+$') then rest = sub(rest, 14) end
  return rest == '' or (#rest > 6 and string.find(rest, '^%-[0-9]+$') ~= nil)
end

-- whether an outcome may involve another workflow
function E.crosses(r, after, jobs)
  local root, own, ids, ups = E.root_of(r), {}, {}, {}
  for k, up in ipairs(after) do ups[k] = up end
  for k, new in ipairs(jobs) do
    local j = R.job(new[1], new[2])
    own[j.id], ids[k] = true, j.id
    if j.key or #j.limits > 0 or j.wait_timeout or j.root ~= root or not is_derived(j.id) then return true end
    for _, up in ipairs(j.after) do ups[#ups + 1] = up end
  end
  for _, up in ipairs(ups) do
    local above = not own[up] and B.get(up)
    if not own[up] and (not above or E.root_of(above) ~= root) then return true end
  end
  return has_left(ids)
end

-- the list with each id replaced by the row that was returned for it
local function resolved(after, answers)
  local list, same = {}, true
  for k, up in ipairs(after) do
    list[k] = answers[up] or up
    if list[k] ~= up then same = false end
  end
  return same and after or list
end

local function store(new, answers, parent)
  local j = new[3]
  local soft = j.key and take_key(j, parent)
  local r = B.make(new[1], new[2], j)
  r.after = resolved(j.after, answers)
  for _, up in ipairs(r.after) do
    if up == soft then soft = nil end    -- `after` names the holder, so its ending counts as for any upstream
  end
  r.pending, r.failures_allowed = E.needed(j.required, r.after) + (soft and 1 or 0), E.tolerated(r.failures_allowed, j.required, r.after)
  if j.deadline then r.deadline_at = now + j.deadline end
  r.due_at = least(not r.function_done and r.deadline_at or nil, j.wait_timeout and now + j.wait_timeout)
  if not soft and r.pending <= 0 and #r.after == 0 then
    E.count_endings()                    -- first: jobs that the parent's ending queues come before this one
    return E.release(r)
  end
  B.put(r)
  if soft then edge(soft, r.id, true, true, 0) end
  E.watch_ups(r, r.after)
end

-- -> the set of the ids that are new; `parent`: the unfinished job whose follow-ups they are
function E.store_all(jobs, answers, parent)
  local fresh, born = {}, {}
  for _, new in ipairs(jobs) do
    if answers[new[1]] == new[1] and not B.get(new[1]) then fresh[#fresh + 1] = new end
  end
  for _, new in ipairs(fresh) do
    if not born[new[1]] then
      born[new[1]] = true
      store(new, answers, parent)
    end
  end
  return born
end
