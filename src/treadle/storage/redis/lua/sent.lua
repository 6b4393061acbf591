-- ARGV: now, seconds to keep, root, number of a move.
-- The first shard has stored this workflow. Its data is kept for a while: a fail-over may lose the last writes of the
-- first shard, and then the workflow is sent again (cross_shard.py).
-- With root '' it returns the data kept of the move, { number, { id, job, row, ... } }, or {}.
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
