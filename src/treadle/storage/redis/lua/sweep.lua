-- ARGV: now, then for each id: id, its pointer when it was read, its new pointer or '' to drop it.
-- Changes only the pointers that are still as they were read.
for k = 2, #ARGV, 3 do
  if call('HGET', POINTERS, ARGV[k]) == ARGV[k + 1] then
    if ARGV[k + 2] == '' then call('HDEL', POINTERS, ARGV[k]) else call('HSET', POINTERS, ARGV[k], ARGV[k + 2]) end
  end
end
return 1
