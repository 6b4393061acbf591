-- ARGV: now, how many entries to check, then a cursor for each of `spent`, `bucket`, `workers`, `skips`, `counts`.
-- Deletes obsolete entries: windows that have passed, full buckets, workers without a heartbeat for 30 days, and
-- `skips` of empty queues, counts of 0. Also forgets the names of empty lists (kinds.lua). Returns the next cursors.
if away() then return { ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7] } end
slowly()
local GONE = 30 * 86400                  -- seconds after a worker's last heartbeat, or a start that no rule counts
local function each(hash, at, drops)
  local found = call('HSCAN', ns .. ':' .. hash, ARGV[at], 'COUNT', ARGV[2])
  local fields, gone = found[2], {}
  for k = 1, #fields, 2 do
    if drops(fields[k], fields[k + 1]) then gone[#gone + 1] = fields[k] end
  end
  many('HDEL', ns .. ':' .. hash, gone)
  return found[1]
end

local function over(key)
  local rule, starts = A.rule(key), ns .. ':starts:' .. key
  local last = tonumber(call('ZRANGE', starts, -1, -1, 'WITHSCORES')[2])
  if last and last + (rule and rule.rate and rule.how ~= 'bucket' and rule.per or GONE) > now then return false end
  call('DEL', starts)
  return true
end

local function full(key, bucket)
  local rule, _, at = A.rule(key), struct.unpack('>dd', bucket)
  if rule and rule.rate and rule.how == 'bucket' then return A.level(rule, key) >= A.capacity(rule) end
  return at < now - GONE
end

local emptied = {}
for _, name in ipairs(call('SMEMBERS', ns .. ':of')) do
  if call('EXISTS', ns .. ':of:' .. name) == 0 then emptied[#emptied + 1] = name end
end
many('SREM', ns .. ':of', emptied)

return {
  each('spent', 3, over), each('bucket', 4, full),
  each('workers', 5, function(_, words) return struct.unpack('>d', words) < now - GONE end),
  each('skips', 6, function(field) return call('EXISTS', ns .. ':line:' .. field) == 0 end),
  each('counts', 7, function(_, jobs) return jobs == '0' end),
}
