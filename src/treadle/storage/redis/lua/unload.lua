-- ARGV: now, how many to pass over, how many. Answers, in the order in which they were made, for each
-- { job, row or '', '1' if it holds its key, whom it is behind or '', edges as msgpack }. Changes nothing.
slowly()
local from = tonumber(ARGV[2])
local ids = call('ZRANGE', MADE, from, from + tonumber(ARGV[3]) - 1)
return C.told(ids)
