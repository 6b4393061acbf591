-- Ends jobs, counts the ending for the jobs that wait for it, releases waiting jobs, and keeps track of keys.
Endings = {}
local KEEP_LEAST = ${KEEP_LEAST}

-- Whether any job waits for another.
local function any_parent()
  if Endings.any_parents == nil then Endings.any_parents = call('EXISTS', PARENTS) == 1 end
  return Endings.any_parents
end

local function dependents_key(up) return ns .. ':kids:' .. up end

local function earliest(a, b)
  if a and b then return math.min(a, b) end
  return a or b
end

-- Returns each id once, in order.
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

-- Returns how many endings a job waits for. If `after` names a row twice, its ending counts once.
function Endings.endings_needed(required, after)
  local ups = #distinct(after)
  return required and math.min(required, ups) or ups
end

function Endings.keeps_key(row)
  local window = row.job.key_window
  return window ~= nil and row.created_at + window > now
end

function Endings.drop_key(row)
  local key = row.job.key
  if key and call('HGET', ns .. ':keys', key) == row.id then call('HDEL', ns .. ':keys', key) end
end

function Endings.holder_of(key, leaving)
  local id = call('HGET', ns .. ':keys', key)
  local row = id and Unit.get(id)
  if not row or ((row.state >= SUCCEEDED or row.id == leaving) and not Endings.keeps_key(row)) then return nil end
  return row.id
end

-- Returns when a row expires: not before its key_window is over, because the row holds the key.
function Endings.expires_at(row, state, ended_at, keep)
  if not keep then keep = state == FAILED and row.job.keep_failed or row.job.keep end
  return math.max(ended_at + math.max(keep, KEEP_LEAST), row.created_at + (row.job.key_window or 0))
end

-- End a job. `count_endings` counts the ending for the jobs that wait, before the call is over.
function Endings.end_job(row, state, reason, error, keep)
  if not Endings.keeps_key(row) then Endings.drop_key(row) end
  row.version, row.state, row.reason, row.error, row.queue_position, row.blocked_on, row.pending =
    row.version + 1, state, reason, error, nil, nil, 0
  row.due_at, row.updated_at, row.ended_at, row.expires_at = nil, now, now, Endings.expires_at(row, state, now, keep)
  Unit.put(row)
  local endings = Unit.endings
  endings[#endings + 1] = { row.id, state }
  Admission.unblock_limits(row)
end

function Endings.schedule_job(row, run_at)
  row.state, row.pending, row.queue_position, row.blocked_on, row.return_position = READY, 0, nil, nil, nil
  row.due_at = run_at
  if not row.function_done then row.due_at = earliest(run_at, row.deadline_at) end
  Unit.put(row)
  Unit.topics['queue:' .. row.job.queue] = true
end

-- End the wait: queue the job now, or schedule it for the end of its delay. A promise keeps waiting.
function Endings.end_wait(row)
  local delay = row.job.delay or 0
  if row.job.task == '' then
    Unit.put(row)
  elseif not row.started_at and not row.function_done and delay > 0 and row.created_at + delay > now then
    Endings.schedule_job(row, row.created_at + delay)
  else
    row.pending = 0
    Unit.queue_job(row, now)
  end
end

-- Store that `down` waits for `up`. `open`: the ending of `up` is not counted yet; `soft`: any ending counts as a
-- success; `version`: the version of `down` when its wait began.
function Endings.set_edge(up, down, open, soft, version)
  call('HSET', dependents_key(up), down, (open and '1' or '0') .. (soft and '1' or '0') .. version)
  call('SADD', PARENTS, up)
  Endings.any_parents = true
end

function Endings.edge_of(up, down)
  local edge = call('HGET', dependents_key(up), down)
  if edge then return byte(edge) == 49, byte(edge, 2) == 49, tonumber(sub(edge, 3)) end
end

function Endings.drop_edge(up, down)
  if call('HDEL', dependents_key(up), down) == 1 and call('EXISTS', dependents_key(up)) == 0 then
    call('SREM', PARENTS, up)
  end
end

local function count_down(up, down, state)
  local open, soft, version = Endings.edge_of(up, down)
  if not open then return end
  Endings.set_edge(up, down, false, soft, version)
  local row = Unit.get(down)
  if not row or row.state ~= WAITING or row.version ~= version then return end
  if soft or not row.failures_allowed or state == SUCCEEDED then
    row.pending = row.pending - 1
  else
    row.failures_allowed = row.failures_allowed - 1
  end
  if row.pending <= 0 then
    Endings.end_wait(row)
  elseif not row.failures_allowed or row.failures_allowed >= 0 then
    Unit.put(row)
  elseif not row.started_at and not row.function_done then
    Endings.end_job(row, CANCELLED, 'upstream', up .. ', which it waited for, ended as ' .. STATES[state])
  else
    Unit.queue_job(row, now)
  end
end

-- A work list instead of recursion, because a chain of any length may be doomed.
function Endings.count_endings()
  local endings = Unit.endings
  while #endings > 0 do
    local up, state = endings[#endings][1], endings[#endings][2]
    endings[#endings] = nil
    if any_parent() and call('SISMEMBER', PARENTS, up) == 1 then
      local downs = call('HKEYS', dependents_key(up))
      Unit.load(downs)
      for _, down in ipairs(downs) do count_down(up, down, state) end
    end
  end
end

-- Returns how many failures a job tolerates: fewer than it allows if too few endings would remain for `required`.
function Endings.failures_tolerated(failures_allowed, required, after)
  if not failures_allowed or failures_allowed == 0 or not required then return failures_allowed end
  return math.min(failures_allowed, #distinct(after) - Endings.endings_needed(required, after))
end

function Endings.dependents(up)
  if call('SISMEMBER', PARENTS, up) == 0 then return {} end
  return call('HKEYS', dependents_key(up))
end

-- Returns the set of this job and of all jobs that wait for it, directly or through others.
function Endings.waiting_for(id)
  local waiting, unread = { [id] = true }, { id }
  while #unread > 0 do
    local up = table.remove(unread)
    local downs = Endings.dependents(up)
    Unit.load(downs)
    for _, down in ipairs(downs) do
      local row, open, _, version = Unit.get(down), Endings.edge_of(up, down)
      if open and row and not waiting[down] and row.state == WAITING and row.version == version then
        waiting[down] = true
        unread[#unread + 1] = down
      end
    end
  end
  return waiting
end

-- Wait for these jobs; those that have ended count at once. `again`: the job has waited for them before. Then upstreams
-- without a row count as successes, because they can no longer end.
function Endings.wait_for_upstreams(row, after, again)
  after = distinct(after)
  for _, up in ipairs(after) do Endings.set_edge(up, row.id, true, false, row.version) end
  Unit.load(after)
  for _, up in ipairs(after) do
    local upstream = Unit.get(up)
    local state = upstream and upstream.state or again and not upstream and SUCCEEDED or WAITING
    if state >= SUCCEEDED then count_down(up, row.id, state) end
  end
  Endings.count_endings()
  if row.state == WAITING and row.pending <= 0 then Endings.end_wait(row) end
end

-- Whether a caller that reaches only these queues reaches this one. A caller without `reach` reaches all queues.
function Endings.is_within(reach, queue)
  for _, allowed in ipairs(reach or {}) do
    if allowed == queue then return true end
  end
  return not reach or #reach == 0
end
