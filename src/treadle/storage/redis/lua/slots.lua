-- ARGV: now, the most rows to read, seconds after the last count during which nothing is done, "1" to change nothing.
-- Counts the slots in use from the rows, and corrects or only returns counters that differ: a script of an earlier
-- version that failed halfway, because its user lacked a right, left slots taken forever.
-- If there are more rows than that, it reads only rows with a due moment and counts only running jobs; if there are too
-- many of these, it does nothing. Returns { limit, its counter before, its slots now, ... }.
local LAST, corrected = ns .. ':recounted', {}
if stopped_by_move() or call('EXISTS', LIVE, BEGUN) == 0 then return corrected end
if now - (tonumber(call('GET', LAST) or nil) or -1e300) < tonumber(ARGV[3]) then return corrected end
define_shared()
local dry_run = ARGV[4] == '1'
if not dry_run then
  write_without_memory()
  call('SET', LAST, num(now))
end
local most, list = tonumber(ARGV[2]), nil
local whole = call('ZCARD', MADE) <= most
if whole then list = MADE elseif call('ZCARD', DUE) <= most then list = DUE else return corrected end

local counts = { [LIVE] = {}, [BEGUN] = {} }
local function add(hash, job)
  local count = counts[hash]
  count['queue:' .. job.queue] = (count['queue:' .. job.queue] or 0) + 1
  for _, limit in ipairs(job.limits) do count[limit[1]] = (count[limit[1]] or 0) + limit[2] end
end
for from = 0, call('ZCARD', list) - 1, STEP do
  local ids = call('ZRANGE', list, from, from + STEP - 1)
  local bodies, raws = fetch(JOB, ids), fetch(ROW, ids)
  for k, id in ipairs(ids) do
    local raw = raws[k]
    if bodies[k] and raw and byte(raw) < SUCCEEDED and sub(raw, 83, 90) ~= NONE_BYTES then
      local row = Row.read(id, bodies[k], raw)
      add(BEGUN, row.job)
      if row.state == RUNNING and not row.function_done then add(LIVE, row.job) end
    end
  end
end

local freed = {}
for _, hash in ipairs(whole and { LIVE, BEGUN } or { LIVE }) do
  local count, stored = counts[hash], call('HGETALL', hash)
  for k = 1, #stored, 2 do count[stored[k]] = count[stored[k]] or 0 end
  for key, slots in pairs(count) do
    local before = Unit.counter(hash, key).value
    if before ~= slots then
      if not dry_run then
        Unit.add(hash, key, slots - before)
        freed[key] = true
      end
      corrected[#corrected + 1], corrected[#corrected + 2], corrected[#corrected + 3] = key, before, slots
    end
  end
end
for key in pairs(freed) do Admission.unblock_limit(key) end
if not dry_run then Unit.finish() end
return corrected
