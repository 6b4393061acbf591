-- ARGV: now, the name of a call, its jobs.   Writes a call over several shards down: from now on it will be carried out,
-- by whoever finds it. Answers now.
do
  local mark = away()
  if mark then return mark end
end
call('HSET', ns .. ':calls', ARGV[2], ARGV[3])
call('ZADD', ns .. ':calls:at', num(now), ARGV[2])
return { num(now) }
