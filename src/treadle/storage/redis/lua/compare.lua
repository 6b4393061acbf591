-- ARGV: now, the number of a recount, '1' to correct the kept counts, then counts; or only the number: the recount is
-- over.
-- Returns for each count what was kept and what was counted, '' for none; or '' if the recount has expired.
if call('HGET', RECOUNT, 'run') ~= ARGV[2] then return '' end
if #ARGV == 2 then
  call('DEL', RECOUNT)
  return ''
end
local fields, numbers, corrected, vanished = { unpack(ARGV, 4) }, {}, {}, {}
local kept, counted = call('HMGET', COUNTS, unpack(fields)), call('HMGET', RECOUNT, unpack(fields))
for k, field in ipairs(fields) do
  local was, is = tonumber(kept[k] or 0), tonumber(counted[k] or 0)
  numbers[2 * k - 1], numbers[2 * k] = was, is
  if was ~= is and is == 0 then
    vanished[#vanished + 1] = field
  elseif was ~= is then
    corrected[#corrected + 1], corrected[#corrected + 2] = field, is
  end
end
if ARGV[3] == '1' then
  write_without_memory()
  call_many('HSET', COUNTS, corrected, 2)
  call_many('HDEL', COUNTS, vanished)
end
call('PEXPIRE', RECOUNT, 10000)
return numbers
