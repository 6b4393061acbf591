-- ARGV: now, call, until, ...
-- call: '', or the call over several shards of which this is a part; it is stored once, and not after `until`.
-- until: 'here' if the jobs are known to belong here.
-- Returns { '\1' } if the jobs belong to the first shard, { '\2' } if the part comes too late.
local done = false
if ARGV[2] ~= '' then
  if now > tonumber(ARGV[3]) then return { '\2' } end
  done = call('ZSCORE', ns .. ':done', ARGV[2]) and true
else
  if call('EXISTS', MOVE, SKIPS, RECOUNT) > 0 then     -- one command for all, as most enqueues find none
    local mark = away()
    if mark then return mark end
  else
    mark, skipping, spot = false, false, false
  end
end
local asks = KEYS[3] and not done and ARGV[3] ~= 'here' and (SPREAD or ARGV[2] == '')
