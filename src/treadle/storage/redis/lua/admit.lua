-- Decides whether a job may start now, like storage/admission.py. The starts of a rate are a sorted set with a counter
-- of their sum.
A = { rules = {}, usage = {}, spent = {} }
local EPSILON = 1e-9
local BACK_MOST = 1000                   -- jobs queued again at once; the rest follow when due rows are advanced

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

-- the starts that have left the window since it was last cleaned up
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

-- Count a start in the rate; B.put counts slots.
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

-- --- blocked jobs

-- An iterator, in queue order, over the jobs of a queue that a limit has blocked: those that hold its slot ('kept'), or
-- the others ('aside'). Only a rule with hold="ended" has jobs of the first kind.
function A.aside(limit, queue, kind)
  local rule, key = A.rule(limit), B.aside(limit, queue)
  local keeping = rule and rule.hold == 'ended'
  if kind == 'kept' and not keeping then return function() end end
  local ranks, rank, list, at, offset = nil, 0, {}, 0, 0
  return function()
    while true do
      at = at + 1
      local id = list[at]
      if id then
        local kept = keeping and kind == 'aside' and call('ZSCORE', ns .. ':kept:' .. ranks[rank] .. ':' .. key, id)
        if not kept then return id end
      else
        if not ranks then ranks = call('ZRANGE', ns .. ':' .. kind .. 's:' .. key, 0, -1) end
        if #list < 100 then rank, offset = rank + 1, 0 end
        if not ranks[rank] then return nil end
        list = call('ZRANGE', ns .. ':' .. kind .. ':' .. ranks[rank] .. ':' .. key, offset, offset + 99)
        offset, at = offset + #list, 0
      end
    end
  end
end

-- the queues with jobs that a limit has blocked
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

local function comes_first(x, y)
  if x.rank ~= y.rank then return x.rank > y.rank end
  if x.queue_position ~= y.queue_position then return x.queue_position < y.queue_position end
  return earlier(x.id, y.id)
end

-- whether any limit blocks a job
function A.any_aside()
  if B.any_aside == nil then B.any_aside = call('EXISTS', ns .. ':asides') == 1 end
  return B.any_aside
end

-- The first job of a queue that a limit has blocked, in queue order; false: there is none. `B.put` drops it from the
-- cache when jobs are blocked or queued again.
local function first_aside(limit, queue)
  local key = B.aside(limit, queue)
  local first = B.firsts[key]
  if first == nil then
    local rank = call('ZRANGE', ns .. ':asides:' .. key, 0, 0)[1]
    local found = rank and call('ZRANGE', ns .. ':aside:' .. rank .. ':' .. key, 0, 0, 'WITHSCORES') or NOTHING
    first = found[1] and { id = found[1], rank = tonumber(rank), queue_position = tonumber(found[2]) } or false
    B.firsts[key] = first
  end
  return first
end

-- Whether a job that this limit admits must not pass the first job of its queue that the limit has blocked: that one
-- precedes it (`turn`: rank, queue_position and id), and there is too little room for it. Otherwise cheap jobs would
-- starve it. If there is room, it waits only for jobs that were queued again, and those may have no worker.
local function holds_back(key, cost, kept, queue, turn)
  local rule = A.rule(key)
  if not rule or (kept and rule.hold == 'ended') then return false end
  -- no row is read where every cost fits that can be blocked: nothing is used, or nothing costs more than this job
  local scarce = rule.slots and rule.slots > cost and A.used(key, rule) > 0
  if not scarce and rule.rate then
    local most = A.capacity(rule)
    scarce = most > cost and A.level(rule, key) < most
  end
  local first = scarce and first_aside(key, queue)
  if not first or not comes_first(first, turn) then return false end
  if not first.cost then first.cost, first.kept = A.price(first.id, key) end
  return not A.fits(key, first.cost, first.kept)
end

-- the first of these limits, all of which admit a job, that holds it back all the same
function A.held_back_by(limits, kept, queue, turn)
  for _, cost in ipairs(limits) do
    if holds_back(cost[1], cost[2], kept, queue, turn) then return cost[1] end
  end
end

-- The jobs of a queue that are queued again after a limit blocked them and not claimed yet, in queue order: those that
-- hold its slot, and the others.
local function came_back(key, queue)
  local keepers, others, rule = {}, {}, A.rule(key)
  local found = call('HGETALL', ns .. ':back:' .. B.aside(key, queue))
  for k = 1, #found, 2 do
    local began, cost, rank, position = string.match(found[k + 1], '^(.)(-?%d+):([^:]+):(.+)$')
    local kept = began == '1' and rule and rule.hold == 'ended' or false
    local list = kept and keepers or others
    list[#list + 1] = { id = found[k], cost = math.max(tonumber(cost), 1), kept = kept, rank = tonumber(rank), queue_position = tonumber(position) }
  end
  table.sort(keepers, comes_first)
  table.sort(others, comes_first)
  return keepers, others
end

-- Jobs that need room, queued again or blocked, in queue order. `take` removes the job that `head` returns.
local function askers(back, aside, key)
  local at, waiting = 1, nil
  local all = {}
  function all.head()
    if waiting == nil then
      local id = aside()
      local r = id and B.get(id)
      if r then
        local cost, kept = A.price(id, key)
        waiting = { id = id, cost = cost, kept = kept or false, rank = r.j.rank, queue_position = r.return_position or 0, aside = true }
      else
        waiting = false
      end
    end
    if back[at] and (not waiting or comes_first(back[at], waiting)) then return back[at] end
    return waiting or nil
  end
  function all.take() if all.head() == waiting then waiting = nil else at = at + 1 end end
  return all
end

-- Collect the blocked jobs of a queue that may be queued again. A job that is queued again already takes its room only
-- from jobs behind it. The first job for which no slot is free holds back those behind it that need a slot; the first
-- that the rate does not admit holds back all behind it.
local function let_back(key, queue, back)
  local rule = A.rule(key)
  local kept_back, others_back = came_back(key, queue)
  local keepers = askers(kept_back, A.aside(key, queue, 'kept'), key)
  local others = askers(others_back, A.aside(key, queue, 'aside'), key)
  local free = rule and rule.slots and rule.slots - A.used(key, rule)
  local left, barred = rule and rule.rate and A.level(rule, key), false
  while #back < BACK_MOST do
    local one, other = keepers.head(), not barred and others.head() or nil
    local from = one and (not other or comes_first(one, other)) and keepers or others
    local each = from == keepers and one or other
    if not each then return end
    from.take()
    local slots = free and not each.kept and math.min(each.cost, rule.slots) or 0
    if free and not each.kept and (rule.slots <= 0 or slots > free) then
      barred = true
    else
      if left then
        local taken = math.min(each.cost, A.capacity(rule))
        if rule.rate <= 0 or left < taken - EPSILON then return end
        left = left - taken
      end
      if free then free = free - slots end
      if each.aside then back[#back + 1] = each.id end
    end
  end
end

-- Queue the blocked jobs of a limit that have room, queue by queue: jobs of a queue that is paused, or that no worker
-- serves, hold back no other queue.
function A.call_in_for(key)
  if B.quiet[key] then return end
  if call('SISMEMBER', ns .. ':asides', key) == 0 then
    if A.any() then call('ZREM', OPENS, key) end
    B.quiet[key] = true                  -- until it blocks a job
    return
  end
  call('ZREM', OPENS, key)
  local back = {}
  for _, queue in ipairs(A.queues(key)) do let_back(key, queue, back) end
  for _, id in ipairs(back) do
    local r = B.get(id)
    r.queue_position = r.return_position
    B.put(r)
    B.called = true
  end
  A.set_opening(key)
  if #back == BACK_MOST and call('SISMEMBER', ns .. ':asides', key) == 1 then call('ZADD', OPENS, num(now), key) end
end

function A.unblock_for(r)
  for _, limit in ipairs(r.j.limits) do A.call_in_for(limit[1]) end
end

-- how much of a rate the jobs ahead of this one will take that are queued again and not claimed yet
local function ahead_of(id, rule, back)
  local r, sum = B.get(id), 0
  local first = { id = id, rank = r.j.rank, queue_position = r.return_position or 0 }
  for _, each in ipairs(back) do
    if comes_first(each, first) then sum = sum + math.min(each.cost, A.capacity(rule)) end
  end
  return sum
end

-- Note the time at which the rate admits the first blocked job of some queue.
function A.set_opening(key)
  local rule, moment = A.rule(key), nil
  for _, queue in ipairs(rule and rule.rate and A.queues(key) or {}) do
    local keepers, others = came_back(key, queue)
    for _, kind in ipairs({ 'kept', 'aside' }) do
      local id = A.aside(key, queue, kind)()
      if id then
        local opens = A.opens_at(rule, key, A.price(id, key) + ahead_of(id, rule, keepers) + ahead_of(id, rule, others))
        if opens and (not moment or opens < moment) then moment = opens end
      end
    end
  end
  if moment then call('ZADD', OPENS, num(moment), key) else call('ZREM', OPENS, key) end
end
