-- ARGV: now, call, until, ...
-- call: '', or the call over several shards of which this is a part; it is stored once, and not after `until`.
-- until: 'here' if the jobs are known to belong here.
-- Returns { '\1' } if the jobs belong to the first shard, { '\2' } if the part comes too late.
-- bounded: whether some queue has a bound. Calls over several shards have none.
local done, bounded = false, false
if ARGV[2] ~= '' then
  if now > tonumber(ARGV[3]) then return { '\2' } end
  done = call('ZSCORE', ns .. ':done', ARGV[2]) and true
else
  local BOUNDED = ns .. ':bounded'
  local found = call('EXISTS', MOVE, SKIPS, RECOUNT, BOUNDED)    -- one command for all, as most enqueues find none
  bounded = found > 0 and call('EXISTS', BOUNDED) == 1
  if found > (bounded and 1 or 0) then
    local mark = away()
    if mark then return mark end
  else
    mark, skipping, spot = false, false, false
  end
end
local asks = KEYS[3] and not done and ARGV[3] ~= 'here' and (SPREAD or ARGV[2] == '')
