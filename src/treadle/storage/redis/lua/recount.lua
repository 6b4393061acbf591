-- ARGV: now, the number of a recount, how many rows to read.
-- One step of a recount: counts the next rows, in the order of their creation. RECOUNT has these counts, and as '' the
-- last row that was read. Each script that changes a row up to that one also changes these counts (base.lua), so
-- they are exact at any time, whatever happens between two steps. After the last step they are those of all rows.
-- Returns '' while another recount is in progress, '1' after the last step, otherwise '0'. RECOUNT expires 10 s after
-- the last step of a process that died; the next step then begins anew.
local run, last = unpack(call('HMGET', RECOUNT, 'run', ''))
if run and run ~= ARGV[2] then return '' end
write_without_memory()
local most, from = tonumber(ARGV[3]), 0
if last then
  local score = struct.unpack('>d', last)
  if score == math.huge then return '1' end
  local before, is_there = members_before(MADE, call('ZCARD', MADE), score, sub(last, 9))
  from = before + is_there
end
local entries, ids = call('ZRANGE', MADE, from, from + most - 1, 'WITHSCORES'), {}
for k = 1, #entries, 2 do ids[#ids + 1] = entries[k] end
local bodies, raws = fetch(JOB, ids), fetch(ROW, ids)

local function kind_of(raw)
  local state = raw and byte(raw) or READY
  if state ~= READY then return STATES[state] end
  if not raw or sub(raw, 51, 58) ~= NONE_BYTES then return 'queued' end
  if byte(raw, 2) < TAIL then return 'scheduled' end
  local wl, ql = struct.unpack('>HH', raw, 117)
  return cmsgpack.unpack(sub(raw, 121 + wl + ql))[2] and 'blocked' or 'scheduled'
end

local counted = {}
for k = 1, #ids do
  local body = bodies[k]
  if body then
    local tl, ql = struct.unpack('>HH', body, 20)
    local field = kind_of(raws[k]) .. ':' .. sub(body, 28 + tl, 27 + tl + ql) .. '\0' .. sub(body, 28, 27 + tl)
    counted[field] = (counted[field] or 0) + 1
  end
end
local last = #ids < most and struct.pack('>d', math.huge) or struct.pack('>d', tonumber(entries[#entries])) .. ids[#ids]
call('HSET', RECOUNT, 'run', ARGV[2], '', last)
for field, jobs in pairs(counted) do call('HINCRBY', RECOUNT, field, jobs) end
call('PEXPIRE', RECOUNT, 10000)
return #ids < most and '1' or '0'
