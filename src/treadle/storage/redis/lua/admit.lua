-- May a job start now? storage/admit.py once more; the log of starts is a sorted set, their sum a counter beside it.
A = { rules = {}, usage = {}, spent = {} }
local EPSILON = 1e-9
local BACK_MOST = 1000                   -- who come back in one go; more come at the next look

function A.any()
  if A.some == nil then A.some = call('EXISTS', RULES) == 1 end
  return A.some
end

local function stored_rule(name)
  local rule = A.rules[name]
  if rule == nil then
    local found = call('HGET', RULES, name)
    rule = found and cmsgpack.unpack(found) or false
    A.rules[name] = rule
  end
  return rule
end

function A.rule(key)
  if not A.any() then return nil end
  local rule = stored_rule(key)
  if not rule then
    local colon = string.find(key, ':', 1, true)
    rule = colon and stored_rule(sub(key, 1, colon - 1))
  end
  return rule or nil
end

function A.used(key, rule)
  return B.count(rule.hold == 'ended' and BEGUN or LIVE, key).value
end

function A.of(key)
  local u = A.usage[key]
  if not u then
    u = { sum = tonumber(call('HGET', ns .. ':spent', key) or 0), new = 0 }
    local bucket = call('HGET', ns .. ':bucket', key)
    if bucket then u.tokens, u.at = struct.unpack('>dd', bucket) end
    A.usage[key] = u
  end
  return u
end

-- what has left the window since it was last swept
local function left(rule, key, u)
  if not u.left then
    u.left, u.gone = 0, {}
    local edge = now - rule.per
    local found = call('ZRANGEBYSCORE', ns .. ':starts:' .. key, '-inf', num(edge + 1e-3), 'WITHSCORES')
    for k = 1, #found, 2 do
      if tonumber(found[k + 1]) + rule.per <= now then
        u.left = u.left + tonumber(string.match(found[k], '^%d+'))
        u.gone[#u.gone + 1] = found[k]
      end
    end
  end
  return u.left
end

function A.slots_fit(rule, key, cost)
  return not rule.slots or (rule.slots > 0 and A.used(key, rule) + math.min(cost, rule.slots) <= rule.slots)
end

local function or_else(x, y) if x and x ~= 0 then return x end return y end

function A.capacity(rule)
  if rule.how == 'bucket' then return or_else(rule.burst, rule.rate or 0) end
  return rule.rate or 0
end

function A.level(rule, key)
  local u = A.of(key)
  if rule.how == 'bucket' then
    local full = A.capacity(rule)
    if not u.tokens then return full end
    return math.min(full, u.tokens + math.max(0, now - u.at) * (rule.rate or 0) / rule.per)
  end
  return (rule.rate or 0) - (u.sum - left(rule, key, u) + u.new)
end

function A.rate_fits(rule, key, cost)
  if not rule.rate then return true end
  return rule.rate > 0 and A.level(rule, key) >= math.min(cost, A.capacity(rule)) - EPSILON
end

function A.opens_at(rule, key, cost)
  if not rule.rate or rule.rate == 0 or A.rate_fits(rule, key, cost) then return nil end
  local wanted = math.min(cost, A.capacity(rule))
  local missing = wanted - A.level(rule, key)
  if rule.how == 'bucket' then return now + missing * rule.per / rule.rate end
  local starts, at = ns .. ':starts:' .. key, 0
  while true do
    local found = call('ZRANGEBYSCORE', starts, num(now - rule.per - 1e-3), '+inf', 'WITHSCORES', 'LIMIT', at, 100)
    if #found == 0 then break end
    for k = 1, #found, 2 do
      local moment = tonumber(found[k + 1])
      if moment + rule.per > now then
        missing = missing - tonumber(string.match(found[k], '^%d+'))
        if missing <= 0 then return moment + rule.per end
      end
    end
    at = at + 100
  end
  if A.of(key).new >= missing and A.of(key).new > 0 then return now + rule.per end
  return nil
end

-- `kept`: the job holds its slots of rules with hold="ended" since an earlier claim
function A.fits(key, cost, kept)
  local rule = A.rule(key)
  if not rule then return true end
  return ((kept and rule.hold == 'ended') or A.slots_fit(rule, key, cost)) and A.rate_fits(rule, key, cost)
end

-- slots are counted by the row itself when it is put
function A.spend(key, cost)
  local rule = A.rule(key)
  if rule and rule.rate then
    local u = A.of(key)
    if rule.how == 'bucket' then
      u.tokens, u.at = A.level(rule, key) - math.min(cost, A.capacity(rule)), now
    else
      left(rule, key, u)
      u.new = u.new + math.min(cost, rule.rate)
    end
    A.spent[key] = true
  end
end

function A.write()
  for key in pairs(A.spent) do
    local rule, u = A.rule(key), A.of(key)
    if rule.how == 'bucket' then
      call('HSET', ns .. ':bucket', key, struct.pack('>dd', u.tokens, u.at))
    else
      local starts, fresh = ns .. ':starts:' .. key, u.new
      many('ZREM', starts, u.gone)
      for _, same in ipairs(call('ZRANGEBYSCORE', starts, num(now), num(now))) do
        call('ZREM', starts, same)
        fresh = fresh + tonumber(string.match(same, '^%d+'))
      end
      call('ZADD', starts, num(now), fresh .. ':' .. num(now))
      u.sum, u.left, u.new, u.gone = u.sum - u.left + u.new, 0, 0, {}
      call('HSET', ns .. ':spent', key, u.sum)
    end
  end
  A.spent = {}
end

-- --- those aside

-- an iterator over who of a queue stands aside for a limit: first those who have kept their slot, then the rest, in turn
function A.aside(limit, queue)
  local rule, key = A.rule(limit), B.aside(limit, queue)
  local keeping = rule and rule.hold == 'ended'
  local kind, ranks, rank, list, at = keeping and 'kept' or 'aside', nil, 0, {}, 0
  local offset = 0
  local function next_id()
    while true do
      at = at + 1
      if list[at] then
        local id = list[at]
        if not (keeping and kind == 'aside') then return id end
        if not call('ZSCORE', ns .. ':kept:' .. ranks[rank] .. ':' .. key, id) then return id end
      else
        if not ranks then ranks = call('ZRANGE', ns .. ':' .. kind .. 's:' .. key, 0, -1) end
        if #list < 100 then rank, offset = rank + 1, 0 end
        if ranks[rank] then
          list = call('ZRANGE', ns .. ':' .. kind .. ':' .. ranks[rank] .. ':' .. key, offset, offset + 99)
          offset, at = offset + #list, 0
        elseif kind == 'kept' then
          kind, ranks, rank, list, at = 'aside', nil, 0, {}, 0
        else
          return nil
        end
      end
    end
  end
  return next_id
end

-- the queues of those who stand aside for a limit
function A.queues(key)
  local queues = call('SMEMBERS', ns .. ':queues:' .. key)
  table.sort(queues, earlier)
  return queues
end

function A.price(id, key)
  local r, rule = B.get(id), A.rule(key)
  local cost = 1
  for _, limit in ipairs(r.j.limits) do if limit[1] == key then cost = limit[2] end end
  return cost, rule and rule.hold == 'ended' and r.started_at ~= nil
end

-- a counter of what fits beside what was counted before
local function fitting(key)
  local rule = A.rule(key)
  if not rule then return function() return true end end
  local used, room = A.used(key, rule), rule.rate and A.level(rule, key)
  return function(cost, kept)
    if rule.slots and not kept then
      local taken = math.min(cost, rule.slots)
      if rule.slots <= 0 or used + taken > rule.slots then return false end
      used = used + taken
    end
    if room then
      local taken = math.min(cost, A.capacity(rule))
      if room < taken - EPSILON or rule.rate == 0 then return false end
      room = room - taken
    end
    return true
  end
end

-- Queue by queue: who is back in a line that is paused, or that nobody serves, keeps no other line waiting.
function A.call_in_for(key)
  if B.quiet[key] then return end
  if call('SISMEMBER', ns .. ':asides', key) == 0 then
    if A.any() then call('ZREM', OPENS, key) end
    B.quiet[key] = true                  -- until somebody steps aside for it
    return
  end
  call('ZREM', OPENS, key)
  local rule, back = A.rule(key), {}
  for _, queue in ipairs(A.queues(key)) do
    local fits, room = fitting(key), true
    for _, price in ipairs(call('HVALS', ns .. ':back:' .. B.aside(key, queue))) do
      if not fits(tonumber(sub(price, 2)), rule and rule.hold == 'ended' and byte(price) == 49) then
        room = false
        break
      end
    end
    local each = A.aside(key, queue)
    local id = room and each()
    while id and #back < BACK_MOST and fits(A.price(id, key)) do
      back[#back + 1] = id
      id = each()
    end
  end
  for _, id in ipairs(back) do
    local r = B.get(id)
    r.place = r.joined_at
    B.put(r)
    B.called = true
  end
  A.set_opening(key)
  if #back == BACK_MOST and call('SISMEMBER', ns .. ':asides', key) == 1 then call('ZADD', OPENS, num(now), key) end
end

function A.call_in(r)
  for _, limit in ipairs(r.j.limits) do A.call_in_for(limit[1]) end
end

-- note when the rate will let in the first of some queue who stands aside
function A.set_opening(key)
  local rule, moment = A.rule(key), nil
  for _, queue in ipairs(rule and A.queues(key) or {}) do
    local opens = A.opens_at(rule, key, (A.price(A.aside(key, queue)(), key)))
    if opens and (not moment or opens < moment) then moment = opens end
  end
  if moment then call('ZADD', OPENS, num(moment), key) else call('ZREM', OPENS, key) end
end
