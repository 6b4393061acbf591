-- ARGV: now, how many due times to look at, the due time and id after which to begin ('' for the start), the queue or
-- '' for all, '1' for all checkpoints. Returns { the last due time and id looked at ('' '' if these were all), job,
-- row, ... of the running jobs among them }. Each running job is there, at the end of its lease. Changes nothing.
local most = tonumber(ARGV[2])
local entries, ids = entries_after(DUE, most, tonumber(ARGV[3]), ARGV[4])
local raws, rows, wanted_ids = fetch(ROW, ids), {}, {}
for k, id in ipairs(ids) do
  local raw = raws[k]
  if raw and byte(raw) == RUNNING then
    local worker_length, queue_length = struct.unpack('>HH', raw, 117)
    local queue = sub(raw, 121 + worker_length, 120 + worker_length + queue_length)
    if ARGV[5] == '' or queue == ARGV[5] then
      wanted_ids[#wanted_ids + 1], rows[#rows + 1] = id, raw
    end
  end
end
local answer = #ids < most and { '', '' } or { entries[#entries], entries[#entries - 1] }
for k, body in ipairs(fetch(JOB, wanted_ids)) do
  if body then answer[#answer + 1], answer[#answer + 2] = body, listed(wanted_ids[k], rows[k], ARGV[6] == '1') end
end
return answer
