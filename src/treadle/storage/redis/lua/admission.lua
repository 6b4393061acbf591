-- Decides whether a job may start now, like storage/admission.py. The starts of a rate are a sorted set with a counter
-- of their sum.
Admission = { rules = {}, usages = {}, spent = {} }
local EPSILON = 1e-9
local BACK_MOST = 1000                   -- jobs queued again at once; the rest follow when due rows are advanced

function Admission.has_rules()
  if Admission.rules_exist == nil then Admission.rules_exist = call('EXISTS', RULES) == 1 end
  return Admission.rules_exist
end

local function stored_rule(name)
  local rule = Admission.rules[name]
  if rule == nil then
    local stored = call('HGET', RULES, name)
    rule = stored and cmsgpack.unpack(stored) or false
    Admission.rules[name] = rule
  end
  return rule
end

function Admission.rule(key)
  if not Admission.has_rules() then return nil end
  local rule = stored_rule(key)
  if not rule then
    local colon = string.find(key, ':', 1, true)
    rule = colon and stored_rule(sub(key, 1, colon - 1))
  end
  return rule or nil
end

function Admission.slots_in_use(key, rule)
  return Unit.counter(rule.hold == 'ended' and BEGUN or LIVE, key).value
end

-- Returns the tokens of a bucket, when it had them, and the last start that found it full; an older process stores no
-- third number.
function Admission.unpack_bucket(bucket)
  local tokens, refilled_at = struct.unpack('>dd', bucket)
  return tokens, refilled_at, #bucket > 16 and (struct.unpack('>d', bucket, 17)) or 0
end

function Admission.usage_of(key)
  local usage = Admission.usages[key]
  if not usage then
    usage = { sum = tonumber(call('HGET', ns .. ':spent', key) or 0), new_cost = 0 }
    local bucket = call('HGET', ns .. ':bucket', key)
    if bucket then usage.tokens, usage.at, usage.since = Admission.unpack_bucket(bucket) end
    Admission.usages[key] = usage
  end
  return usage
end

-- Returns the cost of the starts that have left the window since it was last cleaned up.
local function starts_gone(rule, key, usage)
  if not usage.gone_cost then
    usage.gone_cost, usage.gone_starts = 0, {}
    local edge = now - rule.per
    local starts = call('ZRANGEBYSCORE', ns .. ':starts:' .. key, '-inf', num(edge + 1e-3), 'WITHSCORES')
    for k = 1, #starts, 2 do
      if tonumber(starts[k + 1]) + rule.per <= now then
        usage.gone_cost = usage.gone_cost + tonumber(string.match(starts[k], '^%d+'))
        usage.gone_starts[#usage.gone_starts + 1] = starts[k]
      end
    end
  end
  return usage.gone_cost
end

function Admission.slots_fit(rule, key, cost)
  return not rule.slots or (rule.slots > 0
    and Admission.slots_in_use(key, rule) + math.min(cost, rule.slots) <= rule.slots)
end

function Admission.capacity(rule)
  if rule.how == 'bucket' and rule.burst and rule.burst ~= 0 then return rule.burst end
  return rule.rate or 0
end

function Admission.rate_level(rule, key)
  local usage = Admission.usage_of(key)
  if rule.how == 'bucket' then
    local full = Admission.capacity(rule)
    if not usage.tokens then return full end
    return math.min(full, usage.tokens + math.max(0, now - usage.at) * (rule.rate or 0) / rule.per)
  end
  return (rule.rate or 0) - (usage.sum - starts_gone(rule, key, usage) + usage.new_cost)
end

function Admission.rate_fits(rule, key, cost)
  if not rule.rate then return true end
  return rule.rate > 0 and Admission.rate_level(rule, key) >= math.min(cost, Admission.capacity(rule)) - EPSILON
end

function Admission.opens_at(rule, key, cost)
  if not rule.rate or rule.rate == 0 or Admission.rate_fits(rule, key, cost) then return nil end
  local wanted = math.min(cost, Admission.capacity(rule))
  local missing = wanted - Admission.rate_level(rule, key)
  if rule.how == 'bucket' then return now + missing * rule.per / rule.rate end
  local starts, offset = ns .. ':starts:' .. key, 0
  while true do
    local page_of_starts = call('ZRANGEBYSCORE', starts, num(now - rule.per - 1e-3), '+inf', 'WITHSCORES', 'LIMIT',
      offset, 100)
    if #page_of_starts == 0 then break end
    for k = 1, #page_of_starts, 2 do
      local moment = tonumber(page_of_starts[k + 1])
      if moment + rule.per > now then
        missing = missing - tonumber(string.match(page_of_starts[k], '^%d+'))
        if missing <= 0 then return moment + rule.per end
      end
    end
    offset = offset + 100
  end
  local new_cost = Admission.usage_of(key).new_cost
  if new_cost >= missing and new_cost > 0 then return now + rule.per end
end

-- Whether a limit admits a job now. `kept`: since an earlier claim the job has held its slots of rules with
-- hold="ended".
function Admission.fits(key, cost, kept)
  local rule = Admission.rule(key)
  if not rule then return true end
  return ((kept and rule.hold == 'ended') or Admission.slots_fit(rule, key, cost))
    and Admission.rate_fits(rule, key, cost)
end

-- Count a start in the rate; `Unit.put` counts slots. A window records the whole cost, see admission.charge.
function Admission.record_start(key, cost)
  local rule = Admission.rule(key)
  if rule and rule.rate then
    local usage = Admission.usage_of(key)
    if rule.how == 'bucket' then
      local remaining, full = Admission.rate_level(rule, key), Admission.capacity(rule)
      if remaining >= full then usage.since = now end
      usage.tokens, usage.at = remaining - math.min(cost, full), now
    else
      starts_gone(rule, key, usage)
      usage.new_cost = usage.new_cost + cost
    end
    Admission.spent[key] = true
  end
end

function Admission.write()
  for key in pairs(Admission.spent) do
    local rule, usage = Admission.rule(key), Admission.usage_of(key)
    if rule.how == 'bucket' then
      call('HSET', ns .. ':bucket', key, struct.pack('>ddd', usage.tokens, usage.at, usage.since or 0))
    else
      local starts, fresh = ns .. ':starts:' .. key, usage.new_cost
      call_many('ZREM', starts, usage.gone_starts)
      for _, same in ipairs(call('ZRANGEBYSCORE', starts, num(now), num(now))) do
        call('ZREM', starts, same)
        fresh = fresh + tonumber(string.match(same, '^%d+'))
      end
      call('ZADD', starts, num(now), fresh .. ':' .. num(now))
      usage.sum = usage.sum - usage.gone_cost + usage.new_cost
      usage.gone_cost, usage.new_cost, usage.gone_starts = 0, 0, {}
      call('HSET', ns .. ':spent', key, usage.sum)
    end
  end
  Admission.spent = {}
end

-- --- blocked jobs

-- An iterator, in queue order, over the jobs of a queue that a limit has blocked: jobs that hold its slot ('kept'), or
-- the others ('aside'). Only a rule with hold="ended" has jobs of the first kind.
function Admission.blocked_jobs(limit, queue, kind)
  local rule, key = Admission.rule(limit), Unit.blocked_key(limit, queue)
  local keeps_slots = rule and rule.hold == 'ended'
  if kind == 'kept' and not keeps_slots then return function() end end
  local ranks, rank, page, index, offset = nil, 0, {}, 0, 0
  return function()
    while true do
      index = index + 1
      local id = page[index]
      if id then
        local kept = keeps_slots and kind == 'aside' and call('ZSCORE', ns .. ':kept:' .. ranks[rank] .. ':' .. key, id)
        if not kept then return id end
      else
        if not ranks then ranks = call('ZRANGE', ns .. ':' .. kind .. 's:' .. key, 0, -1) end
        if #page < 100 then rank, offset = rank + 1, 0 end
        if not ranks[rank] then return nil end
        page = call('ZRANGE', ns .. ':' .. kind .. ':' .. ranks[rank] .. ':' .. key, offset, offset + 99)
        offset, index = offset + #page, 0
      end
    end
  end
end

-- Returns the queues with jobs that a limit has blocked, in order.
function Admission.blocked_queues(key)
  local queues = call('SMEMBERS', ns .. ':queues:' .. key)
  table.sort(queues, earlier)
  return queues
end

function Admission.cost_of(id, key)
  local row, rule = Unit.get(id), Admission.rule(key)
  return cost_of(row.job, key), rule and rule.hold == 'ended' and row.started_at ~= nil
end

local function comes_first(x, y)
  if x.rank ~= y.rank then return x.rank > y.rank end
  if x.queue_position ~= y.queue_position then return x.queue_position < y.queue_position end
  return earlier(x.id, y.id)
end

-- Whether any limit blocks a job.
function Admission.any_blocked()
  if Unit.any_blocked == nil then Unit.any_blocked = call('EXISTS', ns .. ':asides') == 1 end
  return Unit.any_blocked
end

-- The first job of a queue that a limit has blocked, in queue order; false: there is none. `Unit.put` drops it from the
-- cache when jobs are blocked or queued again.
local function first_blocked(limit, queue)
  local key = Unit.blocked_key(limit, queue)
  local first = Unit.first_blocked[key]
  if first == nil then
    local rank = call('ZRANGE', ns .. ':asides:' .. key, 0, 0)[1]
    local entry = rank and call('ZRANGE', ns .. ':aside:' .. rank .. ':' .. key, 0, 0, 'WITHSCORES') or NOTHING
    first = entry[1] and { id = entry[1], rank = tonumber(rank), queue_position = tonumber(entry[2]) } or false
    Unit.first_blocked[key] = first
  end
  return first
end

-- Whether a job that this limit admits must still wait, because the first job of its queue that the limit has blocked
-- precedes it (`turn`: rank, queue_position and id) and there is too little room for that one. Otherwise cheap jobs
-- would starve it. If there is room, the blocked job waits only for jobs that were queued again, and they may have no
-- worker.
local function holds_back(key, cost, kept, queue, turn)
  local rule = Admission.rule(key)
  if not rule or (kept and rule.hold == 'ended') then return false end
  -- No row is read if there is room for any cost: the limit is unused, or no job may cost more than this one.
  local scarce = rule.slots and rule.slots > cost and Admission.slots_in_use(key, rule) > 0
  if not scarce and rule.rate then
    local capacity = Admission.capacity(rule)
    scarce = capacity > cost and Admission.rate_level(rule, key) < capacity
  end
  local first = scarce and first_blocked(key, queue)
  if not first or not comes_first(first, turn) then return false end
  if not first.cost then first.cost, first.kept = Admission.cost_of(first.id, key) end
  return not Admission.fits(key, first.cost, first.kept)
end

-- Returns the first of these limits that holds a job back, although each of them admits it.
function Admission.held_back_by(limits, kept, queue, turn)
  for _, limit in ipairs(limits) do
    if holds_back(limit[1], limit[2], kept, queue, turn) then return limit[1] end
  end
end

-- The jobs of a queue that a limit had blocked and that are queued again but not claimed yet, in queue order: first
-- those that hold its slot, then the others.
local function unblocked_jobs(key, queue)
  local with_slot, without_slot, rule = {}, {}, Admission.rule(key)
  local entries = call('HGETALL', ns .. ':back:' .. Unit.blocked_key(key, queue))
  for k = 1, #entries, 2 do
    local had_begun, cost, rank, position = string.match(entries[k + 1], '^(.)(-?%d+):([^:]+):(.+)$')
    local kept = had_begun == '1' and rule and rule.hold == 'ended' or false
    local list = kept and with_slot or without_slot
    list[#list + 1] = { id = entries[k], cost = tonumber(cost), kept = kept, rank = tonumber(rank),
      queue_position = tonumber(position) }
  end
  table.sort(with_slot, comes_first)
  table.sort(without_slot, comes_first)
  return with_slot, without_slot
end

-- Jobs that need room, queued again or blocked, in queue order. `take` removes the job that `head` returns.
local function merged_candidates(unblocked, next_blocked, key)
  local index, waiting = 1, nil
  local candidates = {}
  function candidates.head()
    if waiting == nil then
      local id = next_blocked()
      local row = id and Unit.get(id)
      if row then
        local cost, kept = Admission.cost_of(id, key)
        waiting = { id = id, cost = cost, kept = kept or false, rank = row.job.rank,
          queue_position = row.return_position or 0, is_blocked = true }
      else
        waiting = false
      end
    end
    if unblocked[index] and (not waiting or comes_first(unblocked[index], waiting)) then return unblocked[index] end
    return waiting or nil
  end
  function candidates.take() if candidates.head() == waiting then waiting = nil else index = index + 1 end end
  return candidates
end

-- Collect the blocked jobs of a queue that may be queued again. A job that is queued again already reduces the room
-- only for jobs behind it. The first job for which no slot is free holds back those behind it that need a slot; the
-- first that the rate does not admit holds back all behind it.
local function unblock_queue(key, queue, to_queue)
  local rule = Admission.rule(key)
  local kept_back, others_back = unblocked_jobs(key, queue)
  local keepers = merged_candidates(kept_back, Admission.blocked_jobs(key, queue, 'kept'), key)
  local others = merged_candidates(others_back, Admission.blocked_jobs(key, queue, 'aside'), key)
  local free = rule and rule.slots and rule.slots - Admission.slots_in_use(key, rule)
  local rate_left, is_barred = rule and rule.rate and Admission.rate_level(rule, key), false
  while #to_queue < BACK_MOST do
    local keeper, other = keepers.head(), not is_barred and others.head() or nil
    local from = keeper and (not other or comes_first(keeper, other)) and keepers or others
    local candidate = from == keepers and keeper or other
    if not candidate then return end
    from.take()
    local slots = free and not candidate.kept and math.min(candidate.cost, rule.slots) or 0
    if free and not candidate.kept and (rule.slots <= 0 or slots > free) then
      is_barred = true
    else
      if rate_left then
        local taken = math.min(candidate.cost, Admission.capacity(rule))
        if rule.rate <= 0 or rate_left < taken - EPSILON then return end
        rate_left = rate_left - taken
      end
      if free then free = free - slots end
      if candidate.is_blocked then to_queue[#to_queue + 1] = candidate.id end
    end
  end
end

-- Queue the blocked jobs of a limit that have room, queue by queue: jobs of a queue that is paused, or that no worker
-- serves, hold back no other queue.
function Admission.unblock_limit(key)
  if Unit.blocks_none[key] then return end
  if call('SISMEMBER', ns .. ':asides', key) == 0 then
    if Admission.has_rules() then call('ZREM', OPENS, key) end
    Unit.blocks_none[key] = true                  -- until it blocks a job
    return
  end
  call('ZREM', OPENS, key)
  local to_queue = {}
  for _, queue in ipairs(Admission.blocked_queues(key)) do unblock_queue(key, queue, to_queue) end
  for _, id in ipairs(to_queue) do
    local row = Unit.get(id)
    row.queue_position = row.return_position
    Unit.put(row)
    Unit.unblocked = true
  end
  Admission.note_opening(key)
  if #to_queue == BACK_MOST and call('SISMEMBER', ns .. ':asides', key) == 1 then call('ZADD', OPENS, num(now), key) end
end

function Admission.unblock_limits(row)
  for _, limit in ipairs(row.job.limits) do Admission.unblock_limit(limit[1]) end
end

-- Returns how much of a rate is taken by the jobs ahead of this one that are queued again and not claimed yet.
local function ahead_of(id, rule, unblocked)
  local row, sum = Unit.get(id), 0
  local first = { id = id, rank = row.job.rank, queue_position = row.return_position or 0 }
  for _, earlier_job in ipairs(unblocked) do
    if comes_first(earlier_job, first) then sum = sum + math.min(earlier_job.cost, Admission.capacity(rule)) end
  end
  return sum
end

-- Note the time at which the rate admits the first blocked job of some queue.
function Admission.note_opening(key)
  local rule, moment = Admission.rule(key), nil
  for _, queue in ipairs(rule and rule.rate and Admission.blocked_queues(key) or {}) do
    local keepers, others = unblocked_jobs(key, queue)
    for _, kind in ipairs({ 'kept', 'aside' }) do
      local id = Admission.blocked_jobs(key, queue, kind)()
      if id then
        local opens = Admission.opens_at(rule, key,
          Admission.cost_of(id, key) + ahead_of(id, rule, keepers) + ahead_of(id, rule, others))
        if opens and (not moment or opens < moment) then moment = opens end
      end
    end
  end
  if moment then call('ZADD', OPENS, num(moment), key) else call('ZREM', OPENS, key) end
end
