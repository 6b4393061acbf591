-- Reads the bounds of queues (storage/bounds.py). The functions exist only if some queue has a bound, because a closure
-- costs 1 % of an enqueue of 8 jobs.
local bound_of, count_waiting, excess, refusal_of
if has_bounds then
  local FACTS = ns .. ':facts'
  local rules = {}

  -- Returns the rule that bounds a queue, whether or not the queue is paused; false: it has no bound.
  function bound_of(queue)
    local rule = rules[queue]
    if rule == nil then
      local own_name, name_for_all = 'queue:' .. queue, 'queue'
      local facts = call('HMGET', FACTS, 'set:' .. own_name, 'declared:' .. own_name, 'set:' .. name_for_all,
        'declared:' .. name_for_all)
      local raw = facts[1] or facts[2] or facts[3] or facts[4]
      rule = raw and cmsgpack.unpack(raw)
      if rule and not rule.max_waiting then rule = false end
      rules[queue] = rule
    end
    return rule
  end

  -- Returns how many jobs are queued, scheduled or blocked. It adds the sizes of their sets and reads no row.
  function count_waiting(queue)
    local jobs = call('ZCARD', ns .. ':of:scheduled:' .. queue) + call('ZCARD', ns .. ':of:blocked:' .. queue)
    for _, rank in ipairs(call('ZRANGE', ns .. ':lines:' .. queue, 0, -1)) do
      jobs = jobs + call('ZCARD', ns .. ':line:' .. rank .. ':' .. queue)
    end
    return jobs
  end

  function excess(rule, waiting, wanted) return math.max(0, math.min(wanted, waiting + wanted - rule.max_waiting)) end

  -- Returns the refusal of a call that needs room for this many jobs.
  function refusal_of(queue, rule, waiting, wanted)
    return { '', 'full', queue, string.format('%d\0%d\0%d', rule.max_waiting, waiting, wanted) }
  end
end
