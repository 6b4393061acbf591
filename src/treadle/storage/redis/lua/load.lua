-- ARGV: now, the mark, number of facts, kind name value ..., number of rates, name rate ..., rows of metrics (metrics.lua),
-- then for each job: id, job with its time, row or '', '1' if it holds its key, former holder it waits for or '', edges as msgpack.
-- rate: { { time, cost } ..., no time twice; tokens or false, at }. edge: { up, open, soft, version }.
-- Stores them unchanged: advances no due rows, counts no endings and publishes nothing. A known id is left as it is.
-- Returns '', or the stored mark if the new one may not replace it; then nothing is stored.
do
  local refused = M.write(ARGV[2])
  if refused then return refused end
end
slowly()
local at = 3
for _ = 1, tonumber(ARGV[at]) do
  F.take(ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
  at = at + 3
end
at = at + 1
for _ = 1, tonumber(ARGV[at]) do
  local key, rate, sum = ARGV[at + 1], cmsgpack.unpack(ARGV[at + 2]), 0
  call('DEL', ns .. ':starts:' .. key)
  for _, start in ipairs(rate[1]) do
    call('ZADD', ns .. ':starts:' .. key, num(start[1]), start[2] .. ':' .. num(start[1]))
    sum = sum + start[2]
  end
  if sum > 0 then call('HSET', ns .. ':spent', key, sum) end
  if rate[2] then call('HSET', ns .. ':bucket', key, struct.pack('>dd', rate[2], rate[3])) end
  at = at + 2
end
at = at + 1
store_metrics(at)
expire_metrics()
C.store(at + 1 + 4 * ARGV[at])
B.write()
return ''
