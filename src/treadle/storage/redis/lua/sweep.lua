-- ARGV: now, then id, what its pointer said, what it is to say or '' to have it dropped; ...   Of pointers to the first
-- shard, those that still say what they did.
for at = 2, #ARGV, 3 do
  if call('HGET', LEFT, ARGV[at]) == ARGV[at + 1] then
    if ARGV[at + 2] == '' then call('HDEL', LEFT, ARGV[at]) else call('HSET', LEFT, ARGV[at], ARGV[at + 2]) end
  end
end
return 1
