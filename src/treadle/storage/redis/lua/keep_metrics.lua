-- ARGV: now, seconds to keep, then the rows to remove and those to store, as metrics.lua reads them.
do
  local mark = away(CLOSING)
  if mark then return mark end
end
make_way()
drop_metrics(3)
store_metrics(4 + 3 * ARGV[3])
expire_metrics(tonumber(ARGV[2]))
return 1
