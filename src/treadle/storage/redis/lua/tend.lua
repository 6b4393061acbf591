-- What is due: scheduled jobs join the line, lost leases return, deadlines and waits end, rates let somebody in.
T = {}
local MOST = ${TEND_STEP}                        -- due rows one call moves; more come at the next

local function act(r)
  if r.deadline_at and r.deadline_at <= now and not r.ran then
    E.finish(r, FAILED, 'expired', 'its deadline passed')
  elseif r.state == RUNNING then
    r.lost, r.updated_at = r.lost + 1, now
    r.reason = 'lost by ' .. (string.match(r.worker or '', '^(.+)#[^#]*$') or r.worker or '')
    B.join(r, now)
    A.call_in(r)
  elseif r.state == READY then
    B.join(r, r.due_at or now)
  elseif not r.started_at and not r.ran then
    E.finish(r, FAILED, 'expired', 'what it waited for did not come in time')
  elseif r.j.task ~= '' then
    B.join(r, now)
  else
    r.due_at = nil                       -- a promise that ran: nobody acts on it, so it is due no more
    if not r.ran then r.due_at = r.deadline_at end
    B.put(r)
  end
  E.count_endings()
end

function T.tend()
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
