-- ARGV: now, the number of a move between shards, until when it may be stored, then the jobs as `Transfer.store` reads
-- them. Stores a workflow that has left another shard, and stores it only once, however often it is sent. Returns 1, or
-- 0 if too late.
if now > tonumber(ARGV[3]) then return 0 end
define_shared()
if not call('ZSCORE', ns .. ':done', ARGV[2]) then
  Transfer.store(4)
  call('ZADD', ns .. ':done', '+inf', ARGV[2])
  Unit.finish()
end
return 1
