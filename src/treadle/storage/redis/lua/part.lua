-- ARGV: now, call, until, ...
-- call: '', or of which call over several shards this is a part; it is stored once, and not after `until`.
-- until: 'here' where it is known to belong here.
-- Answers { '\1' } where it belongs into the first shard, { '\2' } if it comes too late.
local done = false
if ARGV[2] ~= '' then
  if now > tonumber(ARGV[3]) then return { '\2' } end
  done = call('ZSCORE', ns .. ':done', ARGV[2]) and true
else
  if call('EXISTS', MOVE, SKIPS) > 0 then     -- the one question a plain enqueue asks of both
    local mark = away()
    if mark then return mark end
  else
    mark, skipping = false, false
  end
end
local asks = KEYS[3] and not done and ARGV[3] ~= 'here' and (SPREAD or ARGV[2] == '')
