-- Advances due rows: queues scheduled jobs and jobs whose lease expired, ends jobs past a deadline or wait_timeout, and
-- queues blocked jobs that their rate admits.
Due = {}
local MOST = ${DUE_STEP}                        -- due rows advanced by one call; the next call takes more

local function advance_row(row)
  if row.deadline_at and row.deadline_at <= now and not row.function_done then
    Endings.end_job(row, FAILED, 'expired', 'its deadline passed')
  elseif row.state == RUNNING then
    row.lost, row.updated_at = row.lost + 1, now
    row.reason = 'lost by ' .. (string.match(row.worker or '', '^(.+)#[^#]*$') or row.worker or '')
    Unit.queue_job(row, now)
    Admission.unblock_limits(row)
  elseif row.state == READY then
    Unit.queue_job(row, row.due_at or now)
  elseif not row.started_at and not row.function_done then
    Endings.end_job(row, FAILED, 'expired', 'what it waited for did not come in time')
  elseif row.job.task ~= '' then
    Unit.queue_job(row, now)
  else
    row.due_at = nil                       -- a promise that was claimed: it only waits to be settled
    if not row.function_done then row.due_at = row.deadline_at end
    Unit.put(row)
  end
  Endings.count_endings()
end

function Due.advance_due()
  Unit.flush()
  local due = call('ZRANGEBYSCORE', DUE, '-inf', num(now), 'WITHSCORES', 'LIMIT', 0, MOST)
  if #due > 0 then
    write_without_memory()
    local ids = {}
    for k = 1, #due, 2 do ids[#ids + 1] = due[k] end
    Unit.load(ids)
    for k = 1, #due, 2 do
      local row, score = Unit.get(due[k]), tonumber(due[k + 1])
      if row and row.due_at == score and (row.state ~= RUNNING or score < now) then advance_row(row) end
    end
  end
  for _, key in ipairs(call('ZRANGEBYSCORE', OPENS, '-inf', num(now))) do Admission.unblock_limit(key) end
end
