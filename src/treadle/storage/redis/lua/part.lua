-- ARGV: now, call, until, ...
-- call: '', or the call over several shards of which this is a part; it is stored once, and not after `until`.
-- until: 'here' if the jobs are known to belong here.
-- Returns { '\1' } if the jobs belong to the first shard, { '\2' } if the part comes too late.
-- has_bounds: whether some queue has a bound. Calls over several shards have none.
local is_stored, has_bounds = false, false
if ARGV[2] ~= '' then
  if now > tonumber(ARGV[3]) then return { '\2' } end
  is_stored = call('ZSCORE', ns .. ':done', ARGV[2]) and true
else
  local BOUNDED = ns .. ':bounded'
  local existing = call('EXISTS', MOVE, SKIPS, RECOUNT, BOUNDED)    -- one command for all, as most enqueues find none
  has_bounds = existing > 0 and call('EXISTS', BOUNDED) == 1
  if existing > (has_bounds and 1 or 0) then
    local stopped = stopped_by_move()
    if stopped then return stopped end
  else
    mark, has_skips, recounting = false, false, false
  end
end
local check_pointers = KEYS[3] and not is_stored and ARGV[3] ~= 'here' and (LATER_SHARD or ARGV[2] == '')
