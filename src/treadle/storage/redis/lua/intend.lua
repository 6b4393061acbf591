-- ARGV: now, the name of a call, its jobs. Stores a call over several shards. From now on it will be carried out, by
-- any process that finds it. Returns { now }.
local stopped = stopped_by_move()
if stopped then return stopped end
call('HSET', ns .. ':calls', ARGV[2], ARGV[3])
call('ZADD', ns .. ':calls:at', num(now), ARGV[2])
return { num(now) }
