-- The second half of a settle: the per-row path, for all outcomes that the bulk path has left.
define_shared()
local STOPS = { asked = true, superseded = true, paused = true }    -- reasons of which a worker is notified
local function or_nil(x) if x then return x end end

local function decoded(encoded)
  if byte(encoded) == 102 then return cmsgpack.unpack(sub(encoded, 2)) end
  local out = {
    state = byte(encoded, 2), version = (struct.unpack('>i4', encoded, 3)),
    attempt = (struct.unpack('>I4', encoded, 7)), keep = Row.moment_or_nil((struct.unpack('>d', encoded, 11))),
    delay = 0, function_done = false, checkpoints = {}, after = {},
  }
  if #encoded > 18 then
    local tail = cmsgpack.unpack(sub(encoded, 19))
    out.result, out.value, out.error, out.reason = or_nil(tail[3]), or_nil(tail[4]), or_nil(tail[5]), or_nil(tail[6])
  end
  return out
end

-- Whether the row has all checkpoints of an outcome; see row_rules.repeats.
local function has_checkpoints(out, row)
  local wanted = {}
  for _, pair in ipairs(out.checkpoints) do
    if sub(pair[1], 1, 8) ~= 'treadle:' then wanted[pair[1]] = pair[2] end
  end
  return Row.remembers(row, wanted)
end

-- Whether this same outcome has been applied and the row is unchanged since.
local function repeats(out, row)
  if row.version ~= out.version + 1 or row.state == RUNNING then return false end
  local act = Reopen.act_nonce(out.checkpoints)
  if act then return Row.remembers(row, { ['treadle:act'] = act }) end
  local waited = out.state == WAITING and row.state == READY and row.function_done == out.function_done
  return (row.state == out.state or waited) and row.attempt == out.attempt and row.result == out.result
    and row.value == out.value and row.error == out.error and row.reason == out.reason and has_checkpoints(out, row)
end

-- Returns the set of the new jobs for which the job of this outcome would wait, directly or through others.
local function upstreams_among_new(out, jobs, answers, fresh)
  local ups, reached_ids, unread = {}, {}, {}
  for _, new in ipairs(jobs) do
    if fresh[new[1]] then ups[new[1]] = new[3].after end
  end
  for _, up in ipairs(out.after) do unread[#unread + 1] = up end
  while #unread > 0 do
    local id = table.remove(unread)
    if ups[id] and not reached_ids[id] then
      reached_ids[id] = true
      for _, up in ipairs(ups[id]) do unread[#unread + 1] = answers[up] or up end
    end
  end
  return reached_ids
end

-- Checks the rows that were returned for follow-ups of this outcome, and the rows that follow-ups name: returns those
-- that are its job or wait for it, directly or through others. nil and what is wrong if a follow-up that the job waits
-- for would wait for such a row. See row_rules.refuse_circle.
local function circle_of(out, jobs, answers)
  local circle, fresh, dependents = {}, {}, nil
  if out.state ~= WAITING then return circle end
  local function check(answer)
    dependents = dependents or Endings.waiting_for(out.id)
    if dependents[answer] then circle[answer] = true end
  end
  for _, new in ipairs(jobs) do
    local id = new[1]
    if answers[id] == id and not Unit.get(id) then fresh[id] = true end
  end
  for _, new in ipairs(jobs) do
    if not fresh[answers[new[1]]] then check(answers[new[1]]) end
    for _, up in ipairs(fresh[new[1]] and new[3].after or {}) do
      if not answers[up] then check(up) end
    end
  end
  if not next(circle) then return circle end
  local upstreams = upstreams_among_new(out, jobs, answers, fresh)
  for _, new in ipairs(jobs) do
    if upstreams[new[1]] then
      for _, up in ipairs(new[3].after) do
        local answer = answers[up] or up
        if circle[answer] then return nil, new[1], answer .. '\0' .. out.id end
      end
    end
  end
  return circle
end

-- Wait for the jobs that the outcome names, or the rows returned for them.
local function wait(row, out, answers, circle)
  local after, seen = {}, {}
  for _, up in ipairs(out.after) do
    local answer = answers[up] or up
    if not seen[up] and not circle[answer] then
      seen[up] = true
      after[#after + 1] = answer
    end
  end
  local ups = row.ups or {}
  for _, up in ipairs(row.after) do ups[#ups + 1] = up end
  if #ups > 0 then row.ups = ups end
  local due = not row.function_done and row.deadline_at or nil
  if out.delay > 0 then due = due and math.min(due, now + out.delay) or now + out.delay end
  row.state, row.after, row.pending, row.failures_allowed, row.queue_position, row.blocked_on, row.due_at =
    WAITING, after, Endings.endings_needed(out.required, after), out.failures_allowed, nil, nil, due
  Unit.put(row)
  Endings.wait_for_upstreams(row, after)
end

local function apply(row, out, jobs, answers, circle)
  local was_running = row.state == RUNNING
  if out.spent then Costs.settle(row, out.spent) end
  row.attempt, row.result, row.value, row.error, row.reason = out.attempt, out.result, out.value, out.error, out.reason
  row.updated_at, row.function_done = now, row.function_done or out.function_done
  Row.remember_anew(row, out.checkpoints)
  if out.note then row.note = out.note end
  if out.state >= SUCCEEDED then
    if not was_running then row.worker = nil end
    Endings.end_job(row, out.state, out.reason, out.error, out.keep)
    NewJobs.store_all(jobs, answers)
    return
  end
  if row.result then Unit.topics['job:' .. row.id] = true end
  row.version, row.worker, row.queue_position, row.blocked_on, row.due_at, row.state =
    row.version + 1, nil, nil, nil, nil, WAITING
  Unit.put(row)
  NewJobs.store_all(jobs, answers, row.id)
  if out.state == READY and out.delay <= 0 then
    Unit.queue_job(row, now)
  elseif out.state == READY then
    Endings.schedule_job(row, now + out.delay)
  else
    wait(row, out, answers, circle)
  end
  Admission.unblock_limits(row)
end

-- Whether the job may wait for `above`; see row_rules.may_wait.
local function may_wait(out, row, above)
  if Endings.is_within(out.reach, above.job.queue) then return true end
  for _, up in ipairs(row.after) do
    if up == above.id then return true end
  end
  return false
end

-- Refuse an ending that names failed jobs if one of them is open again or has succeeded since, or if its job has not
-- waited for it. Return whether it was refused.
local function stale_because_reopened(k, row, out)
  local waited = {}
  for _, up in ipairs(row.after) do waited[up] = true end
  for _, up in ipairs(out.after) do
    local above = Unit.get(up)
    if not waited[up] then
      refuse(k, 'unknown', up, row.id)
      return true
    elseif above and above.state <= SUCCEEDED then
      refuse(k, 'stale', up .. ' is ' .. STATES[above.state])
      return true
    end
  end
  return false
end

local crossed = {}                      -- workflows that must move to the first shard before their outcomes are applied

local function settle(k)
  local id = ids[k]
  local row, out = Unit.get(id), decoded(encoded[k])
  if not row then
    if has_pointer({ id }) then return refuse(k, 'left') end
    return refuse(k, 'stale', 'there is no such job')
  end
  if not Endings.is_within(out.reach, row.job.queue) then return refuse(k, 'stale', 'there is no such job') end
  if repeats(out, row) then return end
  if row.version ~= out.version then
    return refuse(k, 'stale', 'it is ' .. STATES[row.state] .. ' at version ' .. row.version)
  end
  if row.state >= SUCCEEDED then
    local status, what, other = Reopen.settle_ended(row, out)
    if status ~= 'applied' then refuse(k, status, what, other) end
    return
  end
  local final = out.state >= SUCCEEDED
  if final and #out.after > 0 and stale_because_reopened(k, row, out) then return end
  local ups = final and {} or out.after
  local jobs, from = {}, followups_at[k]
  for n = 1, tonumber(ARGV[from]) do jobs[n] = { ARGV[from + 2 * n - 1], ARGV[from + 2 * n] } end
  if LATER_SHARD then
    local root = NewJobs.root_of(row)
    crossed[root] = crossed[root] or NewJobs.involves_others(row, ups, jobs)
    if crossed[root] then return refuse(k, 'cross', root) end
  end
  local answers, wrong, third, other = NewJobs.plan(jobs, final and id or nil)
  if not answers then return refuse(k, wrong, third, other) end
  for _, up in ipairs(ups) do
    local above = not answers[up] and Unit.get(up)
    if not answers[up] and not (above and may_wait(out, row, above)) then return refuse(k, 'unknown', up, id) end
  end
  out.id = id
  local circle, wrong, third = circle_of(out, jobs, answers)
  if not circle then return refuse(k, 'circle', wrong, third) end
  if row.state == RUNNING and row.worker and STOPS[out.reason] then
    Unit.topics['worker:' .. (string.match(row.worker, '^(.+)#[^#]*$') or row.worker)] = true
  end
  apply(row, out, jobs, answers, circle)
  Endings.count_endings()
end

local slow = {}
for k = 1, total do
  if not is_settled[k] then slow[#slow + 1] = ids[k] end
end
Unit.load(slow)
for k = 1, total do
  if not is_settled[k] then settle(k) end
end
Admission.write()
Unit.finish()
return refusals
