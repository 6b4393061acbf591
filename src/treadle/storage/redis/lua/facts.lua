-- The limits as they are changed: storage/limit_facts.py once more. The hash `facts` has each fact by itself, "kind:name" to the
-- rule as msgpack or to the end of a pause; the hash `rules` has the rule that acts, derived from them.
F = {}
local FACTS = ns .. ':facts'
local KINDS = { 'set', 'declared', 'paused', 'held' }

local function fact(kind, name) return call('HGET', FACTS, kind .. ':' .. name) end

-- whether it was another before; '' is none
local function put(kind, name, value)
  if (fact(kind, name) or false) == (value or false) then return false end
  if value then call('HSET', FACTS, kind .. ':' .. name, value) else call('HDEL', FACTS, kind .. ':' .. name) end
  return true
end

local function without_slots(raw)
  return raw and cmsgpack.unpack(raw).slots == 0
end

-- the operator's rule, else the declared one; while there is a reason to pause it, with 0 slots
function F.derive(name)
  local raw = fact('set', name) or fact('declared', name)
  if fact('paused', name) or fact('held', name) then
    local rule = raw and cmsgpack.unpack(raw) or { name = name }
    rule.slots = 0
    rule.per = rule.per or 1
    raw = cmsgpack.pack(rule)
  end
  if raw then call('HSET', RULES, name, raw) else call('HDEL', RULES, name) end
end

-- of a version that kept all of them among the rules
function F.adopt()
  if call('EXISTS', FACTS) == 1 or call('EXISTS', RULES) == 0 then return end
  local found, plain = call('HGETALL', RULES), {}
  local own = { ['treadle.rule:'] = 'set', ['treadle.code:'] = 'declared', ['treadle.paused:'] = 'paused',
    ['treadle.held:'] = 'held' }
  for k = 1, #found, 2 do
    local name, raw = found[k], found[k + 1]
    local kind, limit = own[string.match(name, '^treadle%.%a+:') or ''], string.match(name, '^treadle%.%a+:(.*)$')
    if kind then
      local rule = cmsgpack.unpack(raw)
      rule.name = limit
      put(kind, limit, (kind == 'paused' or kind == 'held') and '' or cmsgpack.pack(rule))
      call('HDEL', RULES, name)
    else
      plain[name] = raw
    end
  end
  for name, raw in pairs(plain) do
    local declared = fact('declared', name)
    if not (fact('paused', name) or fact('held', name)) then
      local one, other = cmsgpack.unpack(raw), declared and cmsgpack.unpack(declared) or {}
      local same = true
      for _, word in ipairs({ 'slots', 'rate', 'per', 'how', 'burst', 'hold' }) do
        if (one[word] or false) ~= (other[word] or false) then same = false end
      end
      if not same then put('set', name, raw) end
    end
    F.derive(name)
  end
end

-- { do, name, rule as msgpack, why, until }; whether it has changed anything
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
        if without_slots(fact(kind, name)) then anew = put(kind, name) or anew end
      end
    end
  end
  if anew then F.derive(name) end
  return anew
end

-- one that has been carried here
function F.take(kind, name, value)
  put(kind, name, value)
  F.derive(name)
end

-- what is known of a limit, and the number of the last change here: for the other shards
function F.told(name)
  local words = { name, call('HGET', ns .. ':facts:at', '') or '0' }
  for _, kind in ipairs(KINDS) do
    local value = fact(kind, name)
    words[#words + 1] = value and ('=' .. value) or ''
  end
  return words
end

-- ... and that put in place of what is known here, unless it is older
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
