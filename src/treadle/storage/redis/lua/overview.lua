-- Reads what `glance` and `stats` have in common.

-- Returns the number of jobs in a queue, and the position of the first one.
local function size_and_head(queue)
  local jobs, first = 0, nil
  for _, rank in ipairs(call('ZRANGE', ns .. ':lines:' .. queue, 0, -1)) do
    local list = ns .. ':line:' .. rank .. ':' .. queue
    local head = tonumber(call('ZRANGE', list, 0, 0, 'WITHSCORES')[2])
    if head then
      jobs = jobs + call('ZCARD', list)
      if not first or head < first then first = head end
    end
  end
  return jobs, first
end

-- Returns what Python derives limits and workers from: { facts, live, begun, the limits that block a job, the limits
-- with a rate, workers }.
local function limit_uses(live)
  local rated = call('HKEYS', ns .. ':spent')
  for _, key in ipairs(call('HKEYS', ns .. ':bucket')) do rated[#rated + 1] = key end
  return { call('HGETALL', ns .. ':facts'), live, call('HGETALL', BEGUN), call('SMEMBERS', ns .. ':asides'), rated,
           call('HGETALL', ns .. ':workers') }
end
