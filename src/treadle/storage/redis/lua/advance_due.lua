-- Advances due rows: queues scheduled jobs and jobs whose lease expired, ends jobs past a deadline or wait_timeout, and
-- queues blocked jobs that their rate admits.
T = {}
local MOST = ${DUE_STEP}                        -- due rows advanced by one call; the next call takes more

local function act(r)
  if r.deadline_at and r.deadline_at <= now and not r.function_done then
    E.finish(r, FAILED, 'expired', 'its deadline passed')
  elseif r.state == RUNNING then
    r.lost, r.updated_at = r.lost + 1, now
    r.reason = 'lost by ' .. (string.match(r.worker or '', '^(.+)#[^#]*$') or r.worker or '')
    B.join(r, now)
    A.unblock_for(r)
  elseif r.state == READY then
    B.join(r, r.due_at or now)
  elseif not r.started_at and not r.function_done then
    E.finish(r, FAILED, 'expired', 'what it waited for did not come in time')
  elseif r.j.task ~= '' then
    B.join(r, now)
  else
    r.due_at = nil                       -- a promise that was claimed: it only waits to be settled
    if not r.function_done then r.due_at = r.deadline_at end
    B.put(r)
  end
  E.count_endings()
end

function T.advance_due()
  B.flush()
  local due = call('ZRANGEBYSCORE', DUE, '-inf', num(now), 'WITHSCORES', 'LIMIT', 0, MOST)
  if #due > 0 then
    make_way()
    local ids = {}
    for k = 1, #due, 2 do ids[#ids + 1] = due[k] end
    B.load(ids)
    for k = 1, #due, 2 do
      local r, at = B.get(due[k]), tonumber(due[k + 1])
      if r and r.due_at == at and (r.state ~= RUNNING or at < now) then act(r) end
    end
  end
  for _, key in ipairs(call('ZRANGEBYSCORE', OPENS, '-inf', num(now))) do A.call_in_for(key) end
end
