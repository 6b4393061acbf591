-- ARGV: now, the number of a recount, '1' to correct the kept counts, then counts; or the number and a new version of the
-- layout or '': the recount is over.
-- Returns for each count what was kept and what was counted, '' for none; or '' if the recount has expired.
if call('HGET', RECOUNT, 'run') ~= ARGV[2] then return '' end
if #ARGV == 3 then
  call('DEL', RECOUNT)
  if ARGV[3] ~= '' then call('SET', ns .. ':schema', ARGV[3]) end
  return ''
end
local fields, told, set, gone = { unpack(ARGV, 4) }, {}, {}, {}
local kept, counted = call('HMGET', COUNTS, unpack(fields)), call('HMGET', RECOUNT, unpack(fields))
for k, field in ipairs(fields) do
  local was, is = tonumber(kept[k] or 0), tonumber(counted[k] or 0)
  told[2 * k - 1], told[2 * k] = was, is
  if was ~= is and is == 0 then
    gone[#gone + 1] = field
  elseif was ~= is then
    set[#set + 1], set[#set + 2] = field, is
  end
end
if ARGV[3] == '1' then
  make_way()
  many('HSET', COUNTS, set, 2)
  many('HDEL', COUNTS, gone)
end
call('PEXPIRE', RECOUNT, 10000)
return told
