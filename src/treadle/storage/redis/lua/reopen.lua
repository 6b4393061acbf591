-- Applies outcomes to ended jobs: changes how long a row is kept, or reopens a job with all that ended because of it.
Reopen = {}

-- Returns the job, the jobs that its ending doomed, each ancestor that failed because of a child, and the jobs that
-- those doomed.
local function jobs_to_reopen(row)
  local reopening, known, stack = { row }, { [row.id] = true }, { row }
  while #stack > 0 do
    local current = table.remove(stack)
    local related = {}
    local downs = Endings.dependents(current.id)
    Unit.load(downs)
    for _, down in ipairs(downs) do
      local doomed = Unit.get(down)
      if doomed and doomed.reason == 'upstream' and doomed.state == CANCELLED then related[#related + 1] = doomed end
    end
    local parent = current.job.parent and Unit.get(current.job.parent)
    if parent and parent.state == FAILED and parent.reason == 'children' then related[#related + 1] = parent end
    for _, other in ipairs(related) do
      if not known[other.id] then
        known[other.id] = true
        reopening[#reopening + 1], stack[#stack + 1] = other, other
      end
    end
  end
  return reopening
end

-- A job that still waits and has counted this ending waits for it again.
local function undo_count_down(up, down)
  local open, soft, version = Endings.edge_of(up.id, down)
  local row = Unit.get(down)
  if not row or row.state ~= WAITING or open or soft or version ~= row.version then return end
  Endings.set_edge(up.id, down, true, soft, version)
  if not row.failures_allowed or up.state == SUCCEEDED then
    row.pending = row.pending + 1
  else
    row.failures_allowed = row.failures_allowed + 1
  end
  Unit.put(row)
end

local function reopen_row(row)
  local job = row.job
  if job.key then call('HSET', ns .. ':keys', job.key, row.id) end
  row.function_done = job.function_done or row.reason == 'children'
  row.deadline_at, row.due_at = nil, nil
  if job.deadline then row.deadline_at = now + job.deadline end
  if not row.function_done then row.due_at = row.deadline_at end
  row.version, row.state, row.attempt, row.lost, row.reopenings, row.worker =
    row.version + 1, WAITING, 0, 0, row.reopenings + 1, nil
  row.result, row.value, row.error, row.reason, row.return_position, row.started_at = nil, nil, nil, nil, nil, nil
  row.ended_at, row.expires_at, row.updated_at = nil, nil, now
  Unit.put(row)
end

-- Start its wait again: the upstreams that were reopened have to end again.
local function restart_wait(row)
  local required, failures_allowed = row.job.required, row.job.failures_allowed
  if row.function_done and not row.job.function_done then required, failures_allowed = nil, nil end
  row.pending, row.failures_allowed =
    Endings.endings_needed(required, row.after), Endings.failures_tolerated(failures_allowed, required, row.after)
  Unit.put(row)
  for _, up in ipairs(row.after) do Endings.drop_edge(up, row.id) end
  Endings.wait_for_upstreams(row, row.after, true)
end

-- Returns the nonce of an act that is among the checkpoints.
function Reopen.act_nonce(checkpoints)
  for _, pair in ipairs(checkpoints) do
    if pair[1] == 'treadle:act' then return pair[2] end
  end
end

function Reopen.settle_ended(row, out)
  if out.state == row.state and out.keep then
    Row.remember(row, out.checkpoints)
    -- The next act must name the new version.
    if Reopen.act_nonce(out.checkpoints) then row.version = row.version + 1 end
    row.expires_at = Endings.expires_at(row, row.state, row.ended_at or now, out.keep)
    Unit.put(row)
    return 'applied'
  end
  if out.state ~= READY then return 'stale', 'it is ' .. STATES[row.state] .. ' at version ' .. row.version end
  local reopening = jobs_to_reopen(row)
  for _, reopened in ipairs(reopening) do
    local holder = reopened.job.key and Endings.holder_of(reopened.job.key)
    if holder and holder ~= reopened.id then
      return 'held', reopened.job.key, Endings.is_within(out.reach, Unit.get(holder).job.queue) and holder or ''
    end
  end
  for _, reopened in ipairs(reopening) do
    for _, down in ipairs(Endings.dependents(reopened.id)) do undo_count_down(reopened, down) end
  end
  Row.remember_anew(row, out.checkpoints)
  for _, reopened in ipairs(reopening) do reopen_row(reopened) end
  row.pending = 0
  if out.delay > 0 then Endings.schedule_job(row, now + out.delay) else Unit.queue_job(row, now) end
  for k = 2, #reopening do restart_wait(reopening[k]) end
  return 'applied'
end
