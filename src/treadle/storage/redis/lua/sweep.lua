-- ARGV: now, then for each id: id, its pointer when it was read, its new pointer or '' to drop it.
-- Changes only the pointers that are still as they were read.
for at = 2, #ARGV, 3 do
  if call('HGET', LEFT, ARGV[at]) == ARGV[at + 1] then
    if ARGV[at + 2] == '' then call('HDEL', LEFT, ARGV[at]) else call('HSET', LEFT, ARGV[at], ARGV[at + 2]) end
  end
end
return 1
