-- ARGV: now, how many entries to check, then a cursor for each of `spent`, `bucket`, `workers`, `skips`, `counts`.
-- Deletes obsolete entries: windows that have passed, full buckets, workers without a heartbeat for 30 days, `skips` of
-- empty queues, and counts of 0. Also forgets the names of empty lists (kinds.lua). Returns the next cursors.
if stopped_by_move() then return { ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7] } end
define_shared()
local GONE = 30 * 86400                  -- seconds for which a silent worker, or a start that no rule counts, is kept
local function drop_entries(hash, argument, drops)
  local page = call('HSCAN', ns .. ':' .. hash, ARGV[argument], 'COUNT', ARGV[2])
  local fields, dropped = page[2], {}
  for k = 1, #fields, 2 do
    if drops(fields[k], fields[k + 1]) then dropped[#dropped + 1] = fields[k] end
  end
  call_many('HDEL', ns .. ':' .. hash, dropped)
  return page[1]
end

local function is_over(key)
  local rule, starts = Admission.rule(key), ns .. ':starts:' .. key
  local last = tonumber(call('ZRANGE', starts, -1, -1, 'WITHSCORES')[2])
  if last and last + (rule and rule.rate and rule.how ~= 'bucket' and rule.per or GONE) > now then return false end
  call('DEL', starts)
  return true
end

local function is_full(key, bucket)
  local rule, _, refilled_at = Admission.rule(key), struct.unpack('>dd', bucket)
  if rule and rule.rate and rule.how == 'bucket' then
    return Admission.rate_level(rule, key) >= Admission.capacity(rule)
  end
  return refilled_at < now - GONE
end

local emptied = {}
for _, name in ipairs(call('SMEMBERS', ns .. ':of')) do
  if call('EXISTS', ns .. ':of:' .. name) == 0 then emptied[#emptied + 1] = name end
end
call_many('SREM', ns .. ':of', emptied)

return {
  drop_entries('spent', 3, is_over), drop_entries('bucket', 4, is_full),
  drop_entries('workers', 5, function(_, presence) return struct.unpack('>d', presence) < now - GONE end),
  drop_entries('skips', 6, function(field) return call('EXISTS', ns .. ':line:' .. field) == 0 end),
  drop_entries('counts', 7, function(_, jobs) return jobs == '0' end),
}
