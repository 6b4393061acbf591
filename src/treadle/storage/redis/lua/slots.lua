-- ARGV: now, the most rows to read, seconds after the last count during which nothing is done, "1" to change nothing.
-- Counts the slots in use from the rows, and corrects or only returns counters that differ: a script of an earlier version that failed
-- halfway, because its user lacked a right, left slots taken forever.
-- With more rows than that it reads only those with a due moment and counts only running jobs; with more of those too
-- it does nothing. Returns { limit, its counter before, its slots now, ... }.
local LAST, told = ns .. ':recounted', {}
if away() or call('EXISTS', LIVE, BEGUN) == 0 then return told end
if now - (tonumber(call('GET', LAST) or nil) or -1e300) < tonumber(ARGV[3]) then return told end
slowly()
local look = ARGV[4] == '1'
if not look then
  make_way()
  call('SET', LAST, num(now))
end
local most, list = tonumber(ARGV[2]), nil
local whole = call('ZCARD', MADE) <= most
if whole then list = MADE elseif call('ZCARD', DUE) <= most then list = DUE else return told end

local counts = { [LIVE] = {}, [BEGUN] = {} }
local function add(hash, j)
  local count = counts[hash]
  count['queue:' .. j.queue] = (count['queue:' .. j.queue] or 0) + 1
  for _, limit in ipairs(j.limits) do count[limit[1]] = (count[limit[1]] or 0) + limit[2] end
end
for from = 0, call('ZCARD', list) - 1, STEP do
  local ids = call('ZRANGE', list, from, from + STEP - 1)
  local bodies, raws = fetch(JOB, ids), fetch(ROW, ids)
  for k, id in ipairs(ids) do
    local raw = raws[k]
    if bodies[k] and raw and byte(raw) < SUCCEEDED and sub(raw, 83, 90) ~= NONE_BYTES then
      local r = R.read(id, bodies[k], raw)
      add(BEGUN, r.j)
      if r.state == RUNNING and not r.function_done then add(LIVE, r.j) end
    end
  end
end

local freed = {}
for _, hash in ipairs(whole and { LIVE, BEGUN } or { LIVE }) do
  local count, stored = counts[hash], call('HGETALL', hash)
  for k = 1, #stored, 2 do count[stored[k]] = count[stored[k]] or 0 end
  for key, slots in pairs(count) do
    local before = B.count(hash, key).value
    if before ~= slots then
      if not look then
        B.add(hash, key, slots - before)
        freed[key] = true
      end
      told[#told + 1], told[#told + 2], told[#told + 3] = key, before, slots
    end
  end
end
for key in pairs(freed) do A.call_in_for(key) end
if not look then B.finish() end
return told
