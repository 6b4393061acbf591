-- ARGV: now, how many due times to look at, the due time and id after which to begin ('' for the start), the queue or ''
-- for all. Returns { the last due time and id looked at ('' '' if these were all), job, row, ... of the running jobs
-- among them }. Each running job is there, at the end of its lease. Changes nothing.
local most, from = tonumber(ARGV[2]), 0
if ARGV[3] ~= '' then
  local before, at = standing(DUE, call('ZCARD', DUE), tonumber(ARGV[3]), ARGV[4])
  from = before + at
end
local found, ids, mine = call('ZRANGE', DUE, from, from + most - 1, 'WITHSCORES'), {}, {}
for k = 1, #found, 2 do ids[#ids + 1] = found[k] end
local raws, rows = fetch(ROW, ids), {}
for k, id in ipairs(ids) do
  local raw = raws[k]
  if raw and byte(raw) == RUNNING then
    local wl, ql = struct.unpack('>HH', raw, 117)
    if ARGV[5] == '' or sub(raw, 121 + wl, 120 + wl + ql) == ARGV[5] then
      mine[#mine + 1], rows[#rows + 1] = id, raw
    end
  end
end
local told = #ids < most and { '', '' } or { found[#found], found[#found - 1] }
for k, body in ipairs(fetch(JOB, mine)) do
  if body then told[#told + 1], told[#told + 2] = body, rows[k] end
end
return told
