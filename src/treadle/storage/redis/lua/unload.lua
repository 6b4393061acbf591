-- ARGV: now, how many jobs to skip, how many to read. Returns the values of `Transfer.read`, in the order of creation.
-- Changes nothing.
define_shared()
local from = tonumber(ARGV[2])
local ids = call('ZRANGE', MADE, from, from + tonumber(ARGV[3]) - 1)
return Transfer.read(ids)
