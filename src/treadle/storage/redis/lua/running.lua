-- ARGV: now, how many due times to look at, the due time and id after which to begin ('' for the start), the queue or
-- '' for all. Returns { the last due time and id looked at ('' '' if these were all), job, row, ... of the running jobs
-- among them }. Each running job is there, at the end of its lease. Changes nothing.
local most, from = tonumber(ARGV[2]), 0
if ARGV[3] ~= '' then
  local before, is_there = members_before(DUE, call('ZCARD', DUE), tonumber(ARGV[3]), ARGV[4])
  from = before + is_there
end
local entries, ids, wanted_ids = call('ZRANGE', DUE, from, from + most - 1, 'WITHSCORES'), {}, {}
for k = 1, #entries, 2 do ids[#ids + 1] = entries[k] end
local raws, rows = fetch(ROW, ids), {}
for k, id in ipairs(ids) do
  local raw = raws[k]
  if raw and byte(raw) == RUNNING then
    local wl, ql = struct.unpack('>HH', raw, 117)
    if ARGV[5] == '' or sub(raw, 121 + wl, 120 + wl + ql) == ARGV[5] then
      wanted_ids[#wanted_ids + 1], rows[#rows + 1] = id, raw
    end
  end
end
local answer = #ids < most and { '', '' } or { entries[#entries], entries[#entries - 1] }
for k, body in ipairs(fetch(JOB, wanted_ids)) do
  if body then answer[#answer + 1], answer[#answer + 2] = body, rows[k] end
end
return answer
