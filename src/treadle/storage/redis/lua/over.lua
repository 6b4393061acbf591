-- ARGV: now, s, then the names of calls or leavings that are wholly carried out: nobody will bring them again, but who
-- has begun to. They are remembered for as long as that may take.
for at = 3, #ARGV do call('ZADD', ns .. ':done', 'XX', num(now), ARGV[at]) end
call('ZREMRANGEBYSCORE', ns .. ':done', '-inf', num(now - ARGV[2]))
return 1
