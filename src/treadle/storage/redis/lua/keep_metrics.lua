-- ARGV: now, then the rows to remove and those to store, as metrics.lua reads them.
local stopped = stopped_by_move(CLOSING)
if stopped then return stopped end
drop_metrics(2)
store_metrics(3 + 3 * ARGV[2])
expire_metrics()
return 1
