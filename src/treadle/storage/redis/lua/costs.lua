-- The real costs of runs, which replace those that their claims reserved.
Costs = {}

-- Replace a part of the cost of the starts of a moment; see admission.settled_start.
local function settle_start(key, moment, reserved, spent)
  local starts, usage = ns .. ':starts:' .. key, Admission.usage_of(key)
  for _, entry in ipairs(call('ZRANGEBYSCORE', starts, num(moment), num(moment))) do
    local before = tonumber(string.match(entry, '^%d+'))
    local cost = math.max(0, before - reserved) + spent
    call('ZREM', starts, entry)
    call('ZADD', starts, num(moment), num(cost) .. ':' .. num(moment))
    usage.sum = usage.sum + cost - before
    usage.gone_cost, usage.gone_starts = nil, nil
    call('HSET', ns .. ':spent', key, num(usage.sum))
  end
end

local function settle_bucket(rule, key, moment, reserved, spent)
  local usage, full = Admission.usage_of(key), Admission.capacity(rule)
  if not usage.tokens or moment < usage.since then return end
  usage.tokens = math.min(full, Admission.rate_level(rule, key) + math.min(reserved, full) - spent)
  usage.at = math.max(usage.at, now)
  Admission.spent[key] = true
end

-- Let rates count the real costs of the run that ends, in place of those that its claim reserved. spent: { { limit,
-- cost }, ... }
function Costs.settle(row, spent)
  if not row.worker or not row.started_at or row.function_done then return end   -- no run of its function ends
  local costs = {}
  for _, pair in ipairs(spent) do costs[pair[1]] = pair[2] end
  for _, limit in ipairs(row.job.limits) do
    local key, reserved, cost = limit[1], limit[2], costs[limit[1]]
    local rule = cost and Admission.rule(key)
    if cost and rule and rule.rate and rule.how == 'bucket' then
      settle_bucket(rule, key, row.started_at, reserved, cost)
    elseif cost then
      settle_start(key, row.started_at, reserved, cost)
    end
  end
end
