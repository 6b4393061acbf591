-- ARGV: now, seconds to keep, root, number of a move.
-- Notes that the first shard has stored this workflow. Its data is kept for a while: a fail-over may lose the last
-- writes of the first shard, and then the workflow is sent again (cross_shard.py).
-- With root '' it returns the data kept of the move, { number, { id, job, row, ... } }, or {}.
local SENT, SENT_AT = ns .. ':sent', ns .. ':sent:at'
for _, number in ipairs(call('ZRANGEBYSCORE', SENT_AT, '-inf', num(now - ARGV[2]), 'LIMIT', 0, 100)) do
  call('HDEL', SENT, number)
  call('ZREM', SENT_AT, number)
end
if ARGV[3] == '' then
  local kept = call('HGET', SENT, ARGV[4])
  return kept and cmsgpack.unpack(kept) or {}
end
local leaving = call('HGET', ns .. ':leaving', ARGV[3])
if leaving then
  call('HDEL', ns .. ':leaving', ARGV[3])
  call('HSET', SENT, ARGV[4], leaving)
  call('ZADD', SENT_AT, num(now), ARGV[4])
end
return 1
