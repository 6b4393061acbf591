-- ARGV: now, then queues (default: all).
-- Returns { now as 8 bytes, { queue, position of its first queued job, ... }, { the queues that were not read, because
-- one call reads only so many } }, and without ARGV also { the kept counts }, { what `limit_uses` returns }. Changes
-- nothing.
local MOST = 1000
local heads, rest, all = {}, {}, #ARGV == 1
local queues = all and call('SMEMBERS', ns .. ':lines') or {}
for k = 2, #ARGV do queues[k - 1] = ARGV[k] end
for k, queue in ipairs(queues) do
  if k <= MOST then
    local _, first = size_and_head(queue)
    if first then heads[#heads + 1], heads[#heads + 2] = queue, num(first) end
  else
    rest[k - MOST] = queue
  end
end
if not all then return { NOW_BYTES, heads, rest } end
return { NOW_BYTES, heads, rest, call('HGETALL', COUNTS), limit_uses(call('HGETALL', LIVE)) }
