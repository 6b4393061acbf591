-- Applies changes of limits, like storage/limit_facts.py. The hash `facts` maps "kind:name" of each fact to the rule as
-- msgpack, or to the end of a pause. The hash `rules` has the acting rule, derived from the facts.
Facts = {}
local FACTS = ns .. ':facts'
local KINDS = { 'set', 'declared', 'paused', 'held' }
local BOUNDED = ns .. ':bounded'         -- the names of the limits that bound queues; missing if no queue has a bound

local function fact(kind, name) return call('HGET', FACTS, kind .. ':' .. name) end

-- Store a fact, or delete it if there is no value; return whether that changed anything. '' is a pause without end.
local function put(kind, name, value)
  if (fact(kind, name) or false) == (value or false) then return false end
  if value then call('HSET', FACTS, kind .. ':' .. name, value) else call('HDEL', FACTS, kind .. ':' .. name) end
  return true
end

-- Returns whether a rule has 0 slots, and the rule without them, of which only a bound stays.
local function without_slots(stored)
  local rule = stored and cmsgpack.unpack(stored)
  if not rule or rule.slots ~= 0 then return false end
  if not rule.max_waiting then return true end
  return true, cmsgpack.pack({ name = rule.name, per = 1, max_waiting = rule.max_waiting, when_full = rule.when_full })
end

-- Store the acting rule: the operator's, otherwise the declared one; with 0 slots while there is a reason to pause it.
function Facts.store_acting(name)
  local stored = fact('set', name) or fact('declared', name)
  local bounds = stored and cmsgpack.unpack(stored).max_waiting
  call(bounds and 'SADD' or 'SREM', BOUNDED, name)
  if fact('paused', name) or fact('held', name) then
    local rule = stored and cmsgpack.unpack(stored) or { name = name }
    rule.slots = 0
    rule.per = rule.per or 1
    stored = cmsgpack.pack(rule)
  end
  if stored then call('HSET', RULES, name, stored) else call('HDEL', RULES, name) end
end

-- Apply a change { do, name, rule as msgpack, why, until }; return whether it changed anything.
function Facts.change(what, name, rule, why, ends)
  local is_changed = false
  if what == 'set' or what == 'declare' then
    is_changed = put(what == 'set' and 'set' or 'declared', name, rule)
  elseif what == 'remove' then
    is_changed = put('set', name)
    is_changed = put('declared', name) or is_changed
  elseif what == 'pause' then
    is_changed = put(why, name, ends)
  else
    local stored_end = fact(why, name)
    if stored_end and (ends == '' or (stored_end ~= '' and tonumber(stored_end) <= tonumber(ends))) then
      is_changed = put(why, name)
    end
    if why == 'paused' then
      for _, kind in ipairs({ 'set', 'declared' }) do
        local had_no_slots, rest = without_slots(fact(kind, name))
        if had_no_slots then is_changed = put(kind, name, rest) or is_changed end
      end
    end
  end
  if is_changed then Facts.store_acting(name) end
  return is_changed
end

-- Store a fact of a move.
function Facts.store(kind, name, value)
  put(kind, name, value)
  Facts.store_acting(name)
end

-- Returns the facts of a limit and the number of the last change, for the other shards.
function Facts.of_limit(name)
  local values = { name, call('HGET', ns .. ':facts:at', '') or '0' }
  for _, kind in ipairs(KINDS) do
    local value = fact(kind, name)
    values[#values + 1] = value and ('=' .. value) or ''
  end
  return values
end

-- Replace the facts of a limit by those from the first shard, unless they are older.
function Facts.copy(name, number, ...)
  if tonumber(number) < tonumber(call('HGET', ns .. ':facts:at', name) or -1) then return false end
  call('HSET', ns .. ':facts:at', name, number)
  local is_changed = false
  for k, value in ipairs({ ... }) do
    local fact_value = value ~= '' and sub(value, 2) or nil
    is_changed = put(KINDS[k], name, fact_value) or is_changed
  end
  if is_changed then Facts.store_acting(name) end
  return is_changed
end
