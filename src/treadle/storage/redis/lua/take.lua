-- ARGV: now, the number of a leaving, until when it may be stored, then the jobs as `C.store` reads them.
-- A workflow that left another shard goes on in this one: once, however often it is brought. Answers 1, or 0 if late.
if now > tonumber(ARGV[3]) then return 0 end
slowly()
if not call('ZSCORE', ns .. ':done', ARGV[2]) then
  C.store(4)
  call('ZADD', ns .. ':done', '+inf', ARGV[2])
  B.finish()
end
return 1
