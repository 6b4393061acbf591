-- ARGV: now, then limits. Returns for each how many jobs it blocks. Changes nothing.
local counts = {}
for k = 2, #ARGV do
  local limit, jobs = ARGV[k], 0
  for _, queue in ipairs(call('SMEMBERS', ns .. ':queues:' .. limit)) do
    local key = #limit .. ':' .. limit .. ':' .. queue
    for _, rank in ipairs(call('ZRANGE', ns .. ':asides:' .. key, 0, -1)) do
      jobs = jobs + call('ZCARD', ns .. ':aside:' .. rank .. ':' .. key)
    end
  end
  counts[k - 1] = jobs
end
return counts
