-- Reads the bounds of queues (storage/bounds.py). The functions exist only if some queue has a bound, because a closure
-- costs 1 % of an enqueue of 8 jobs.
local bound_of, waiting_in, excess, full
if bounded then
  local FACTS = ns .. ':facts'
  local known = {}

  -- the rule that bounds a queue, pauses aside; false: it has no bound
  function bound_of(queue)
    local rule = known[queue]
    if rule == nil then
      local own, all = 'queue:' .. queue, 'queue'
      local found = call('HMGET', FACTS, 'set:' .. own, 'declared:' .. own, 'set:' .. all, 'declared:' .. all)
      local raw = found[1] or found[2] or found[3] or found[4]
      rule = raw and cmsgpack.unpack(raw)
      if rule and not rule.max_waiting then rule = false end
      known[queue] = rule
    end
    return rule
  end

  -- the queued, scheduled and blocked jobs: the sizes of their sets, so that no row is read
  function waiting_in(queue)
    local jobs = call('ZCARD', ns .. ':of:scheduled:' .. queue) + call('ZCARD', ns .. ':of:blocked:' .. queue)
    for _, rank in ipairs(call('ZRANGE', ns .. ':lines:' .. queue, 0, -1)) do
      jobs = jobs + call('ZCARD', ns .. ':line:' .. rank .. ':' .. queue)
    end
    return jobs
  end

  function excess(rule, waiting, asked) return math.max(0, math.min(asked, waiting + asked - rule.max_waiting)) end

  -- the refusal of a call that asks for room for so many jobs
  function full(queue, rule, waiting, asked)
    return { '', 'full', queue, string.format('%d\0%d\0%d', rule.max_waiting, waiting, asked) }
  end
end
