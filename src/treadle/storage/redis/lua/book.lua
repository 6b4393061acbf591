-- Caches the rows of a call, and keeps the views in step with them: queues, blocked jobs, due times, slots in use.
-- `put` updates the views from the values they have of a row to its new ones; rows are written at the end.
-- Changes of the sorted sets of times and of the sets of claim ids are collected and written list by list (`flush`),
-- because each command costs a script about as much as the work in it.
B = { rows = {}, dirty = {}, topics = {}, ends = {}, endings = {}, counts = {},
            new = {}, made = {}, system = {}, zsets = {}, sets = {}, listed = {}, sweeps = {}, quiet = {}, gone = {},
            firsts = {} }

-- --- counters, and lists by rank

function B.count(hash, field)
  local known = B.counts[hash]
  if not known then known = {}; B.counts[hash] = known end
  local c = known[field]
  if not c then
    local stored = tonumber(call('HGET', hash, field) or 0)
    c = { stored = stored, value = stored }
    known[field] = c
  end
  return c
end

function B.add(hash, field, delta)
  local c = B.count(hash, field)
  c.value = c.value + delta
end

function B.list_add(kind, key, rank, position, id)
  local list = ns .. ':' .. kind .. ':' .. rank .. ':' .. key
  call('ZADD', list, num(position), id)
  if kind == 'line' then unskip(rank, key, position) end
  if not B.listed[list] then
    call('ZADD', ns .. ':' .. kind .. 's:' .. key, -rank, rank)
    if kind == 'line' then call('SADD', ns .. ':lines', key) end
    B.listed[list] = true
  end
end

function B.list_drop(kind, key, rank, id)
  local list = ns .. ':' .. kind .. ':' .. rank .. ':' .. key
  call('ZREM', list, id)
  B.sweeps[list] = { kind, key, rank }
end

function B.list_swept(kind, key, rank, list)
  if swept(kind, key, rank, list) then B.listed[list] = nil end
end

-- the key of the jobs of a queue that a limit has blocked, and of those that are queued again
function B.aside(limit, queue) return #limit .. ':' .. limit .. ':' .. queue end

function B.lane(j) return lane_of(j.queue, j.rank, j.lane) end

-- --- rows

function B.get(id)
  local r = B.rows[id]
  if r == nil then
    local body = call('HGET', JOB, id)
    r = body and R.read(id, body, call('HGET', ROW, id))
    B.rows[id] = r
  end
  return r or nil
end

function B.load(ids)
  local missing = {}
  for _, id in ipairs(ids) do
    if B.rows[id] == nil then missing[#missing + 1] = id end
  end
  local bodies, raws = fetch(JOB, missing), fetch(ROW, missing)
  for k, id in ipairs(missing) do
    B.rows[id] = bodies[k] and R.read(id, bodies[k], raws[k]) or false
  end
end

function B.make(id, body, j)
  local n = #B.new
  B.new[n + 1], B.new[n + 2] = id, body .. NOW_BYTES
  B.made[n + 1], B.made[n + 2] = num(now), id
  if K.is_system(j) then B.system[#B.system + 1], B.system[#B.system + 2] = num(now), id end
  local r = R.fresh(id, j, now)
  B.rows[id] = r
  if SPREAD and j.root then call('SADD', ns .. ':tree:' .. j.root, id) end
  return r
end

local function each_cost(j, delta, hash)
  B.add(hash, 'queue:' .. j.queue, delta)
  for _, limit in ipairs(j.limits) do B.add(hash, limit[1], delta * limit[2]) end
end

local function noted(lists, key, id, is)
  local list = lists[key]
  if not list then
    list = {}
    lists[key] = list
  end
  list[id] = is
end

local function move(key, id, was, is)
  if was ~= is then noted(B.zsets, key, id, is or false) end
end

function B.flush()
  if #B.new > 0 then
    many('HSET', JOB, B.new, 2)
    many('ZADD', MADE, B.made, 2)
    many('ZADD', K.SYSTEM, B.system, 2)
    B.new, B.made, B.system = {}, {}, {}
  end
  for key, list in pairs(B.zsets) do
    local add, drop, n, m = {}, {}, 0, 0
    for id, score in pairs(list) do
      if score then
        add[n + 1], add[n + 2] = num(score), id
        n = n + 2
      else
        m = m + 1
        drop[m] = id
      end
    end
    many('ZADD', key, add, 2)
    many('ZREM', key, drop)
    if n > 0 then K.name(key) end
  end
  for key, list in pairs(B.sets) do
    local add, drop = {}, {}
    for id, is in pairs(list) do
      if is then add[#add + 1] = id else drop[#drop + 1] = id end
    end
    many('SADD', key, add)
    many('SREM', key, drop)
  end
  for list, words in pairs(B.sweeps) do B.list_swept(words[1], words[2], words[3], list) end
  for _, list in ipairs(#B.gone > 0 and { OLD, ENDED, MADE, DUE, K.SYSTEM } or NOTHING) do many('ZREM', list, B.gone) end
  many('HDEL', JOB, B.gone)
  many('HDEL', ROW, B.gone)
  B.zsets, B.sets, B.sweeps, B.gone = {}, {}, {}, {}
end

local function cost_of(j, key)
  for _, limit in ipairs(j.limits) do
    if limit[1] == key then return limit[2] end
  end
  return 1
end

local function in_line(r, v)
  local j = r.j
  if v.queue_position ~= r.queue_position then
    if v.queue_position then
      B.list_drop('line', j.queue, j.rank, r.id)
      if v.function_done or v.started_at then B.list_drop('fast', j.queue, j.rank, r.id) end
      if j.lane then call('ZREM', B.lane(j), r.id) end
    end
    if r.queue_position then
      B.list_add('line', j.queue, j.rank, r.queue_position, r.id)
      if r.function_done or r.started_at then B.list_add('fast', j.queue, j.rank, r.queue_position, r.id) end
      if j.lane then call('ZADD', B.lane(j), num(r.queue_position), r.id) end
    end
  end
  local was, is = v.queue_position and v.blocked_on, r.queue_position and r.blocked_on
  if was ~= is then
    if was then call('HDEL', ns .. ':back:' .. B.aside(was, j.queue), r.id) end
    if is then
      local turn = ':' .. j.rank .. ':' .. num(r.queue_position)
      call('HSET', ns .. ':back:' .. B.aside(is, j.queue), r.id, (r.started_at and '1' or '0') .. cost_of(j, is) .. turn)
    end
  end
  was, is = not v.queue_position and v.blocked_on, not r.queue_position and r.blocked_on
  if was ~= is then
    if was then
      local key, queues = B.aside(was, j.queue), ns .. ':queues:' .. was
      B.firsts[key] = nil
      for _, kind in ipairs({ 'aside', 'kept' }) do    -- not collected: these lists are read before `flush`
        local list = ns .. ':' .. kind .. ':' .. j.rank .. ':' .. key
        call('ZREM', list, r.id)
        B.list_swept(kind, key, j.rank, list)
      end
      if call('EXISTS', ns .. ':asides:' .. key) == 0 then
        call('SREM', queues, j.queue)
        if call('EXISTS', queues) == 0 then call('SREM', ns .. ':asides', was) end
      end
    end
    if is then
      local key = B.aside(is, j.queue)
      B.list_add('aside', key, j.rank, r.return_position or 0, r.id)
      if r.started_at then B.list_add('kept', key, j.rank, r.return_position or 0, r.id) end
      call('SADD', ns .. ':queues:' .. is, j.queue)
      call('SADD', ns .. ':asides', is)
      B.quiet[is], B.firsts[key], B.any_aside = nil, nil, true
    end
  end
end

local function slots(r, v)
  local was, is = v.known and v.started_at and v.state < SUCCEEDED, r.started_at and r.state < SUCCEEDED
  if (was or false) ~= (is or false) then each_cost(r.j, is and 1 or -1, BEGUN) end
  was, is = v.known and v.state == RUNNING and not v.function_done, r.state == RUNNING and not r.function_done
  if (was or false) ~= (is or false) then each_cost(r.j, is and 1 or -1, LIVE) end
end

-- Count the rows that prune must keep: those that an unfinished row waits for, and the rest of its workflow.
local function needs(r, v)
  local was, is = v.known and v.state < SUCCEEDED or false, r.state < SUCCEEDED
  if was ~= is or v.after ~= r.after then
    if was then for _, up in ipairs(v.after) do B.add(ns .. ':needs', up, -1) end end
    if is then for _, up in ipairs(r.after) do B.add(ns .. ':needs', up, 1) end end
  end
  if was ~= is and r.j.root then B.add(ns .. ':roots', r.j.root, is and 1 or -1) end
end

-- Note the change of the list that has this row; see kinds.lua.
local function listed(r, v)
  local was, old = K.of(v, r.created_at)
  local is, new = K.of(r, r.created_at)
  if was and was ~= is then noted(B.zsets, K.list(was, r.j.queue), r.id, false) end
  if is and (was ~= is or old ~= new) then noted(B.zsets, K.list(is, r.j.queue), r.id, new) end
end

local function count(r, v)
  local was, is = v.known and K.counted(v) or nil, K.counted(r)
  if was ~= is then K.count(was, is, r.j, r.created_at, r.id) end
end

function B.put(r)
  local v, id = r.v, r.id
  in_line(r, v)
  count(r, v)
  local was, is = v.state == RUNNING and v.worker or nil, r.state == RUNNING and r.worker or nil
  if was ~= is then
    if was then noted(B.sets, ns .. ':held:' .. was, id, false) end
    if is then noted(B.sets, ns .. ':held:' .. is, id, true) end
  end
  move(DUE, id, v.due_at, r.due_at)
  listed(r, v)
  slots(r, v)
  needs(r, v)
  move(OLD, id, v.expires_at, r.expires_at)
  move(ENDED, id, v.ended_at and -v.ended_at, r.ended_at and -r.ended_at)
  if r.queue_position then B.topics['queue:' .. r.j.queue] = true end
  if r.state >= SUCCEEDED then B.ends[id] = true end
  sight(r)
  B.dirty[id] = true
end

-- Remove the row from all views; the next `flush` deletes it.
function B.forget(r)
  B.gone[#B.gone + 1] = r.id
  K.count(K.counted(r.v), nil, r.j, r.created_at, r.id)
  if r.state == FAILED then noted(B.zsets, K.list('failed', r.j.queue), r.id, false) end
  if SPREAD and r.j.root then call('SREM', ns .. ':tree:' .. r.j.root, r.id) end
  B.rows[r.id], B.dirty[r.id] = false, nil
end

-- --- queueing

function B.join(r, moment)
  local position = r.return_position or B.queue_position(r.j, moment)
  r.state, r.queue_position, r.return_position, r.blocked_on = READY, position, position, nil
  r.due_at = nil
  if not r.function_done then r.due_at = r.deadline_at end
  B.put(r)
end

function B.queue_position(j, moment)
  local position = moment
  if (j.aging or 0) ~= 0 then position = moment - j.aging * j.priority end
  if not j.lane then return position end
  local last = call('ZRANGE', B.lane(j), -1, -1, 'WITHSCORES')
  if last[2] then return tonumber(last[2]) + (j.stride or 1) end
  local head = call('ZRANGE', ns .. ':line:' .. j.rank .. ':' .. j.queue, 0, 0, 'WITHSCORES')
  return head[2] and math.min(position, tonumber(head[2])) or position
end

function B.next_moment()
  local due, opens = call('ZRANGE', DUE, 0, 0, 'WITHSCORES'), call('ZRANGE', OPENS, 0, 0, 'WITHSCORES')
  due, opens = tonumber(due[2]), tonumber(opens[2])
  if due and opens then due = math.min(due, opens) end
  return due or opens
end

-- --- the end of a call

local function say(channel, topics)
  if #topics > 0 then hint(ns .. channel, cmsgpack.pack(topics)) end
end

function B.write()
  B.flush()
  local changed = {}
  for id in pairs(B.dirty) do
    changed[#changed + 1] = id
    changed[#changed + 1] = R.bytes(B.rows[id])
  end
  many('HSET', ROW, changed, 2)
  for hash, known in pairs(B.counts) do
    local set, gone = {}, {}
    for field, c in pairs(known) do
      if c.value ~= c.stored then
        if c.value == 0 then
          gone[#gone + 1] = field
        else
          set[#set + 1], set[#set + 2] = field, c.value
        end
        c.stored = c.value
      end
    end
    many('HSET', hash, set, 2)
    many('HDEL', hash, gone)
  end
  B.dirty = {}
end

function B.finish()
  B.write()
  local topics = {}
  for topic in pairs(B.topics) do topics[#topics + 1] = topic end
  say(':say', topics)
  topics = {}
  for id in pairs(B.ends) do topics[#topics + 1] = 'job:' .. id end
  say(':ends', topics)
end
