-- ARGV: now, s to keep, root, number of a leaving.   The first shard has taken this workflow. It is not forgotten at once: a
-- fail-over may lose what the first shard took last, and then it is brought again (cross_shard.py). With root '': answers
-- what is kept of the leaving, { number, { id, job, row, ... } }, or {}.
local SENT, SENT_AT = ns .. ':sent', ns .. ':sent:at'
for _, old in ipairs(call('ZRANGEBYSCORE', SENT_AT, '-inf', num(now - ARGV[2]), 'LIMIT', 0, 100)) do
  call('HDEL', SENT, old)
  call('ZREM', SENT_AT, old)
end
if ARGV[3] == '' then
  local found = call('HGET', SENT, ARGV[4])
  return found and cmsgpack.unpack(found) or {}
end
local words = call('HGET', ns .. ':leaving', ARGV[3])
if words then
  call('HDEL', ns .. ':leaving', ARGV[3])
  call('HSET', SENT, ARGV[4], words)
  call('ZADD', SENT_AT, num(now), ARGV[4])
end
return 1
