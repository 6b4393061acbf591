-- ARGV: now, the number of a recount, how many rows to read.
-- One step of a recount: counts the next rows, in the order of their creation. RECOUNT has these counts, and under the
-- name '' the last row that was read. Each script that changes a row up to that one also changes these counts
-- (base.lua), so they are exact at any time, whatever happens between two steps. After the last step they cover all
-- rows. Returns '' while another recount is in progress, '1' after the last step, otherwise '0'. RECOUNT expires 10 s
-- after the last step of a process that died; the next step then starts over.
local run, last = unpack(call('HMGET', RECOUNT, 'run', ''))
if run and run ~= ARGV[2] then return '' end
write_without_memory()
local most, score = tonumber(ARGV[3]), last and struct.unpack('>d', last) or nil
if score == math.huge then return '1' end
local entries, ids = entries_after(MADE, most, score, last and sub(last, 9))
local bodies, raws = fetch(JOB, ids), fetch(ROW, ids)

local function kind_of(raw)
  local state = raw and byte(raw) or READY
  if state ~= READY then return STATES[state] end
  if not raw or sub(raw, 51, 58) ~= NONE_BYTES then return 'queued' end
  if byte(raw, 2) < TAIL then return 'scheduled' end
  local worker_length, queue_length = struct.unpack('>HH', raw, 117)
  return cmsgpack.unpack(sub(raw, 121 + worker_length + queue_length))[2] and 'blocked' or 'scheduled'
end

local counted = {}
for k = 1, #ids do
  local body = bodies[k]
  if body then
    local task_length, queue_length = struct.unpack('>HH', body, 20)
    local task, queue = sub(body, 28, 27 + task_length), sub(body, 28 + task_length, 27 + task_length + queue_length)
    local field = kind_of(raws[k]) .. ':' .. queue .. '\0' .. task
    counted[field] = (counted[field] or 0) + 1
  end
end
local last = #ids < most and struct.pack('>d', math.huge) or struct.pack('>d', tonumber(entries[#entries])) .. ids[#ids]
call('HSET', RECOUNT, 'run', ARGV[2], '', last)
for field, jobs in pairs(counted) do call('HINCRBY', RECOUNT, field, jobs) end
call('PEXPIRE', RECOUNT, 10000)
return #ids < most and '1' or '0'
