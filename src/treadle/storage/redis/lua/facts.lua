-- Applies changes of limits, like storage/limit_facts.py. The hash `facts` maps "kind:name" of each fact to the rule as
-- msgpack, or to the end of a pause. The hash `rules` has the acting rule, derived from the facts.
F = {}
local FACTS = ns .. ':facts'
local KINDS = { 'set', 'declared', 'paused', 'held' }
local BOUNDED = ns .. ':bounded'         -- the names of the limits that bound queues; missing if no queue has a bound

local function fact(kind, name) return call('HGET', FACTS, kind .. ':' .. name) end

-- Store a fact, or delete it without a value; return whether that changed it. '' is a pause without end.
local function put(kind, name, value)
  if (fact(kind, name) or false) == (value or false) then return false end
  if value then call('HSET', FACTS, kind .. ':' .. name, value) else call('HDEL', FACTS, kind .. ':' .. name) end
  return true
end

-- -> whether a rule has 0 slots, and the rule without them: only a bound stays
local function without_slots(raw)
  local rule = raw and cmsgpack.unpack(raw)
  if not rule or rule.slots ~= 0 then return false end
  if not rule.max_waiting then return true end
  return true, cmsgpack.pack({ name = rule.name, per = 1, max_waiting = rule.max_waiting, when_full = rule.when_full })
end

-- Store the acting rule: the operator's, otherwise the declared one; with 0 slots while there is a reason to pause it.
function F.derive(name)
  local raw = fact('set', name) or fact('declared', name)
  local bounds = raw and cmsgpack.unpack(raw).max_waiting
  call(bounds and 'SADD' or 'SREM', BOUNDED, name)
  if fact('paused', name) or fact('held', name) then
    local rule = raw and cmsgpack.unpack(raw) or { name = name }
    rule.slots = 0
    rule.per = rule.per or 1
    raw = cmsgpack.pack(rule)
  end
  if raw then call('HSET', RULES, name, raw) else call('HDEL', RULES, name) end
end

-- Apply a change { do, name, rule as msgpack, why, until }; return whether it changed anything.
function F.apply(what, name, rule, why, till)
  local anew = false
  if what == 'set' or what == 'declare' then
    anew = put(what == 'set' and 'set' or 'declared', name, rule)
  elseif what == 'remove' then
    anew = put('set', name)
    anew = put('declared', name) or anew
  elseif what == 'pause' then
    anew = put(why, name, till)
  else
    local lasts = fact(why, name)
    if lasts and (till == '' or (lasts ~= '' and tonumber(lasts) <= tonumber(till))) then anew = put(why, name) end
    if why == 'paused' then
      for _, kind in ipairs({ 'set', 'declared' }) do
        local had, left = without_slots(fact(kind, name))
        if had then anew = put(kind, name, left) or anew end
      end
    end
  end
  if anew then F.derive(name) end
  return anew
end

-- Store a fact of a move.
function F.take(kind, name, value)
  put(kind, name, value)
  F.derive(name)
end

-- the facts of a limit and the number of the last change, for the other shards
function F.told(name)
  local words = { name, call('HGET', ns .. ':facts:at', '') or '0' }
  for _, kind in ipairs(KINDS) do
    local value = fact(kind, name)
    words[#words + 1] = value and ('=' .. value) or ''
  end
  return words
end

-- Replace the facts of a limit by those from the first shard, unless they are older.
function F.copy(name, number, ...)
  if tonumber(number) < tonumber(call('HGET', ns .. ':facts:at', name) or -1) then return false end
  call('HSET', ns .. ':facts:at', name, number)
  local anew = false
  for k, value in ipairs({ ... }) do
    local kept = value ~= '' and sub(value, 2) or nil
    anew = put(KINDS[k], name, kept) or anew
  end
  if anew then F.derive(name) end
  return anew
end
