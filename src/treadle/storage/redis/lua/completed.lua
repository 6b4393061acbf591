-- ARGV: now, seconds, then the names of calls or moves that are complete. Only processes that are sending them already
-- may send them again, so they are remembered for that many seconds more.
for k = 3, #ARGV do call('ZADD', ns .. ':done', 'XX', num(now), ARGV[k]) end
call('ZREMRANGEBYSCORE', ns .. ':done', '-inf', num(now - ARGV[2]))
return 1
