-- ARGV: now, the mark, number of facts, kind name value ..., number of rates, name rate ..., rows of metrics
-- (metrics.lua), then for each job: id, job with its time, row or '', '1' if it holds its key, former holder it waits
-- for or '', edges as msgpack.
-- rate: { { time, cost } ..., no time twice; tokens or false, at }. edge: { up, open, soft, version }.
-- Stores them unchanged: advances no due rows, counts no endings and publishes nothing. A known id is left as it is.
-- Returns '', or the stored mark if the new one may not replace it; then nothing is stored.
do
  local refused = Mark.write(ARGV[2])
  if refused then return refused end
end
define_shared()
local k = 3
for _ = 1, tonumber(ARGV[k]) do
  Facts.store(ARGV[k + 1], ARGV[k + 2], ARGV[k + 3])
  k = k + 3
end
k = k + 1
for _ = 1, tonumber(ARGV[k]) do
  local key, rate, sum = ARGV[k + 1], cmsgpack.unpack(ARGV[k + 2]), 0
  call('DEL', ns .. ':starts:' .. key)
  for _, start in ipairs(rate[1]) do
    call('ZADD', ns .. ':starts:' .. key, num(start[1]), start[2] .. ':' .. num(start[1]))
    sum = sum + start[2]
  end
  if sum > 0 then call('HSET', ns .. ':spent', key, sum) end
  if rate[2] then call('HSET', ns .. ':bucket', key, struct.pack('>ddd', rate[2], rate[3], rate[4])) end
  k = k + 2
end
k = k + 1
store_metrics(k)
expire_metrics()
Transfer.store(k + 1 + 4 * ARGV[k])
Unit.write()
return ''
