-- ARGV: now, the ask as msgpack, or with what else a claim over several shards says: `tended` already, `more` than what
-- it has got.   Answers { now, next moment or '', again, { body, row, ... } };
-- again: 1 if this ticket was asked before, 2 if there is more to look at.
do
  local mark = away()
  if mark then return mark end
end
local ask = cmsgpack.unpack(ARGV[2])
local LOOK_MOST = 10000                  -- rows of other tasks one call looks past
local ASIDE_MOST = 500                   -- jobs that step aside in one call: the server does nothing else meanwhile
local aside = 0
local bodies, rows, n = {}, {}, 0

local function first_of(a, b)
  if a and b then return num(math.min(a, b)) end
  return a and num(a) or b and num(b) or ''
end

-- when a rate of its own lets the next of a line asked for start
local function next_of_queues()
  local queues, moment = {}, nil
  for _, each in ipairs(ask.queues) do queues[each[1]] = true end
  if #ask.ids > 0 then
    queues = {}
    B.load(ask.ids)
    for _, id in ipairs(ask.ids) do
      local r = B.get(id)
      if r then queues[r.j.queue] = true end
    end
  end
  for queue in pairs(queues) do
    local key = 'queue:' .. queue
    local rule = A.rule(key)
    if rule and rule.rate and call('EXISTS', ns .. ':lines:' .. queue) == 1 then
      local opens = A.opens_at(rule, key, 1)
      if opens and (not moment or opens < moment) then moment = opens end
    end
  end
  return moment
end

local function answer(again)
  local moment = first_of(B.next_moment(), A.any() and next_of_queues())
  local list = {}
  for k = 1, n do list[2 * k - 1], list[2 * k] = bodies[k], rows[k] end
  return { num(now), moment, again, list }
end

local HELD = ns .. ':held:' .. ask.worker
local held = call('SMEMBERS', HELD)
if #held > 0 and not ask.more then
  bodies, rows, n = fetch(JOB, held), fetch(ROW, held), #held
  return answer(1)
end

if not ask.tended then
  T.tend()
  B.write()
end

local room, holds, limit = {}, {}, ask.limit
local tasks = ask.tasks
for task, words in pairs(tasks or {}) do room[task] = words[1] end
for _, id in ipairs(ask.holds) do holds[id] = true end

local function wanted(id, task)
  return not holds[id] and (not tasks or tasks[task]) and (room[task] or 1) > 0
end

-- past the limit of its queue and its own; a job its own limits hold back steps aside
local function admit(r)
  if r.ran then return true end
  local j, kept, shut = r.j, r.started_at ~= nil, nil
  if not A.fits('queue:' .. j.queue, 1, kept) then return false end
  for _, cost in ipairs(j.limits) do
    if not A.fits(cost[1], cost[2], kept) then shut = cost[1] break end
  end
  if not shut then
    A.spend('queue:' .. j.queue, 1)
    for _, cost in ipairs(j.limits) do A.spend(cost[1], cost[2]) end
    return true
  end
  local before = r.parked
  r.place, r.parked, r.due_at = nil, shut, r.deadline_at
  B.put(r)
  A.set_opening(shut)
  aside = aside + 1
  if before and before ~= shut then A.call_in_for(before) end
  return false
end

local function lease_of(task) return tasks and tasks[task][2] or ask.lease end

local function lease(r, body)
  r.version, r.state, r.place, r.parked, r.worker = r.version + 1, RUNNING, nil, nil, ask.worker
  local own = r.j.lease
  if own == 0 then own = nil end
  r.due_at, r.started_at, r.updated_at = now + (own or lease_of(r.j.task)), now, now
  B.put(r)
  if r.j.started and not E.keeps_key(r) then E.drop_key(r) end
  n = n + 1
  bodies[n], rows[n] = body or false, r
  if room[r.j.task] then room[r.j.task] = room[r.j.task] - 1 end
end

-- --- the many plain ones: bytes put together, nothing unpacked

local hot_ids, hot_set, hot_due, hot = {}, {}, {}, 0
local HEAD = struct.pack('>BBI4i4i4I4I4I4', RUNNING, PLAIN, 1, 0, 0, 0, 0, 0)
local moments = {}                       -- by lease: place .. due as bytes, and the score

local function moments_of(task)
  local seconds = lease_of(task)
  local m = moments[seconds]
  if not m then
    m = { struct.pack('>dd', now + seconds, NONE) .. NOW_BYTES .. NOW_BYTES .. NONE_BYTES .. NONE_BYTES, num(now + seconds) }
    moments[seconds] = m
  end
  return m
end

local function lease_plain(id, body, m, tail)
  local made = sub(body, -8)
  local row = HEAD .. sub(body, 4, 19) .. made .. NONE_BYTES .. made .. m[1] .. sub(body, 2, 3) .. tail
  n, hot = n + 1, hot + 1
  bodies[n], rows[n], hot_ids[hot] = body, row, id
  hot_set[2 * hot - 1], hot_set[2 * hot] = id, row
  hot_due[2 * hot - 1], hot_due[2 * hot] = m[2], id
end

-- --- walking the line

-- how many of a list stand up to a spot
local function offset_behind(list, score, id)
  local added = call('ZADD', list, 'NX', num(score), id)
  local rank = call('ZRANK', list, id)
  if added == 1 then
    call('ZREM', list, id)
    return rank
  end
  return rank + 1
end

local looked = 0

local function walk_rank(queue, rank, share, rule, tail)
  local spot, last, kind, offset = nil, nil, nil, 0
  while share > 0 and looked < LOOK_MOST and aside < ASIDE_MOST do
    -- a queue that is shut is passed by those only that need nothing of it
    local from = rule and not A.fits('queue:' .. queue, 1, false) and 'fast' or 'line'
    local list = ns .. ':' .. from .. ':' .. rank .. ':' .. queue
    if spot and (B.called or from ~= kind) then offset = offset_behind(list, spot, last) end
    kind, B.called = from, false
    local ids = call('ZRANGE', list, offset, offset + math.min(share, 500) - 1)
    if #ids == 0 then break end
    local found, raws, gone, m = fetch(JOB, ids), fetch(ROW, ids), 0, nil
    local taken, task, own = {}, nil, nil
    for k, id in ipairs(ids) do
      local body = found[k]
      own = sub(body, 28, 27 + 256 * byte(body, 20) + byte(body, 21))
      if not wanted(id, own) then
        offset, looked = offset + 1, looked + 1
        if rule then
          local r = B.get(id)
          spot, last = r.place, id
        end
      elseif not rule and not raws[k] and byte(body) == PLAIN then
        if own ~= task then
          task, m = own, moments_of(own)
        end
        lease_plain(id, body, m, tail)
        gone, share = gone + 1, share - 1
        taken[gone] = id
        if room[own] then room[own] = room[own] - 1 end
      else
        if B.rows[id] == nil then B.rows[id] = R.read(id, body, raws[k]) end
        local r = B.rows[id]
        spot, last = r.place, id
        if admit(r) then
          lease(r, body)
          share = share - 1
        elseif r.place then
          offset, looked = offset + 1, looked + 1
        end
        if B.called or (rule and from == 'line' and not A.fits('queue:' .. queue, 1, false)) then break end
      end
      if share == 0 then break end
    end
    if gone > 0 then
      call('ZREM', list, unpack(taken))
      B.list_swept('line', queue, rank, list)
      B.add(LIVE, 'queue:' .. queue, gone)
      B.add(BEGUN, 'queue:' .. queue, gone)
    end
  end
  return share
end

local function walk(queue, share)
  local rule = A.rule('queue:' .. queue)
  local tail = struct.pack('>HH', #ask.worker, #queue) .. ask.worker .. queue
  share = math.min(share, limit - n)
  local from = '-inf'
  while share > 0 and aside < ASIDE_MOST do
    local rank = call('ZRANGEBYSCORE', ns .. ':lines:' .. queue, from, '+inf', 'LIMIT', 0, 1)[1]
    if not rank then break end
    share = walk_rank(queue, rank, share, rule, tail)
    from = '(' .. -rank
  end
end

-- these jobs and no others, wherever they stand in line
local function pick(ids)
  B.load(ids)
  local queues, named, seen = {}, {}, {}
  for _, id in ipairs(ids) do
    local r = B.get(id)
    if r and not seen[id] then
      seen[id] = true
      local queue = r.j.queue
      if not named[queue] then
        named[queue] = {}
        queues[#queues + 1] = queue
      end
      if r.place then table.insert(named[queue], r) end
    end
  end
  for _, queue in ipairs(queues) do
    table.sort(named[queue], function(a, b)
      if a.j.rank ~= b.j.rank then return a.j.rank > b.j.rank end
      if a.place ~= b.place then return a.place < b.place end
      return a.id < b.id
    end)
    for _, r in ipairs(named[queue]) do
      if n < limit and r.place and wanted(r.id, r.j.task) and admit(r) then lease(r) end
    end
  end
end

if #ask.ids > 0 then
  pick(ask.ids)
else
  for _, each in ipairs(ask.queues) do walk(each[1], each[2]) end
  for _, each in ipairs(ask.queues) do walk(each[1], limit) end
end
for key in pairs(A.spent) do A.set_opening(key) end
A.write()
if hot > 0 then
  many('HSET', ROW, hot_set, 2)
  many('ZADD', DUE, hot_due, 2)
  many('SADD', HELD, hot_ids)
end
B.finish()
for k = 1, n do
  local r = rows[k]
  if type(r) == 'table' then bodies[k], rows[k] = bodies[k] or call('HGET', JOB, r.id), R.bytes(r) end
end
return answer(aside < ASIDE_MOST and 0 or 2)
