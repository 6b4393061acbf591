-- Caches the rows of a call, and keeps the views in step with them: queues, blocked jobs, due times, slots in use.
-- `put` updates the views from the values they have of a row to its new ones; rows are written at the end.
-- Changes of the sorted sets of times and of the sets of claim ids are collected and written list by list (`flush`),
-- because each command costs a script about as much as the work in it.
Unit = {
  rows = {}, dirty = {}, topics = {}, ended = {}, endings = {}, counts = {}, new = {}, made = {}, system = {},
  zsets = {}, sets = {}, listed = {}, maybe_empty = {}, blocks_none = {}, deleted = {}, first_blocked = {},
}

-- --- counters, and lists by rank

function Unit.counter(hash, field)
  local fields = Unit.counts[hash]
  if not fields then fields = {}; Unit.counts[hash] = fields end
  local counter = fields[field]
  if not counter then
    local stored = tonumber(call('HGET', hash, field) or 0)
    counter = { stored = stored, value = stored }
    fields[field] = counter
  end
  return counter
end

function Unit.add(hash, field, delta)
  local counter = Unit.counter(hash, field)
  counter.value = counter.value + delta
end

function Unit.list_add(kind, key, rank, position, id)
  local list = ns .. ':' .. kind .. ':' .. rank .. ':' .. key
  call('ZADD', list, num(position), id)
  if kind == 'line' then adjust_skips(rank, key, position) end
  if not Unit.listed[list] then
    call('ZADD', ns .. ':' .. kind .. 's:' .. key, -rank, rank)
    if kind == 'line' then call('SADD', ns .. ':lines', key) end
    Unit.listed[list] = true
  end
end

function Unit.list_drop(kind, key, rank, id)
  local list = ns .. ':' .. kind .. ':' .. rank .. ':' .. key
  call('ZREM', list, id)
  Unit.maybe_empty[list] = { kind, key, rank }
end

function Unit.drop_if_empty(kind, key, rank, list)
  if drop_if_empty(kind, key, rank, list) then Unit.listed[list] = nil end
end

-- Returns the suffix of the keys that list the jobs of a queue which a limit has blocked, or which are queued again
-- after that.
function Unit.blocked_key(limit, queue) return #limit .. ':' .. limit .. ':' .. queue end

function Unit.lane_key(job) return lane_key(job.queue, job.rank, job.lane) end

-- --- rows

function Unit.get(id)
  local row = Unit.rows[id]
  if row == nil then
    local body = call('HGET', JOB, id)
    row = body and Row.read(id, body, call('HGET', ROW, id))
    Unit.rows[id] = row
  end
  return row or nil
end

function Unit.load(ids)
  local missing = {}
  for _, id in ipairs(ids) do
    if Unit.rows[id] == nil then missing[#missing + 1] = id end
  end
  local bodies, raws = fetch(JOB, missing), fetch(ROW, missing)
  for k, id in ipairs(missing) do
    Unit.rows[id] = bodies[k] and Row.read(id, bodies[k], raws[k]) or false
  end
end

function Unit.make(id, body, job)
  local n = #Unit.new
  Unit.new[n + 1], Unit.new[n + 2] = id, body .. NOW_BYTES
  Unit.made[n + 1], Unit.made[n + 2] = num(now), id
  if Kinds.is_system(job) then Unit.system[#Unit.system + 1], Unit.system[#Unit.system + 2] = num(now), id end
  local row = Row.fresh(id, job, now)
  Unit.rows[id] = row
  if LATER_SHARD and job.root then call('SADD', ns .. ':tree:' .. job.root, id) end
  return row
end

local function add_costs(job, delta, hash)
  Unit.add(hash, 'queue:' .. job.queue, delta)
  for _, limit in ipairs(job.limits) do Unit.add(hash, limit[1], delta * limit[2]) end
end

local function note_change(lists, key, id, value)
  local list = lists[key]
  if not list then
    list = {}
    lists[key] = list
  end
  list[id] = value
end

local function note_score(key, id, was, is)
  if was ~= is then note_change(Unit.zsets, key, id, is or false) end
end

function Unit.flush()
  if #Unit.new > 0 then
    call_many('HSET', JOB, Unit.new, 2)
    call_many('ZADD', MADE, Unit.made, 2)
    call_many('ZADD', Kinds.SYSTEM, Unit.system, 2)
    Unit.new, Unit.made, Unit.system = {}, {}, {}
  end
  for key, list in pairs(Unit.zsets) do
    local add, drop, n, dropped = {}, {}, 0, 0
    for id, score in pairs(list) do
      if score then
        add[n + 1], add[n + 2] = num(score), id
        n = n + 2
      else
        dropped = dropped + 1
        drop[dropped] = id
      end
    end
    call_many('ZADD', key, add, 2)
    call_many('ZREM', key, drop)
    if n > 0 then Kinds.note_name(key) end
  end
  for key, list in pairs(Unit.sets) do
    local add, drop = {}, {}
    for id, is_member in pairs(list) do
      if is_member then add[#add + 1] = id else drop[#drop + 1] = id end
    end
    call_many('SADD', key, add)
    call_many('SREM', key, drop)
  end
  for list, place in pairs(Unit.maybe_empty) do Unit.drop_if_empty(place[1], place[2], place[3], list) end
  for _, list in ipairs(#Unit.deleted > 0 and { OLD, ENDED, MADE, DUE, Kinds.SYSTEM } or NOTHING) do
    call_many('ZREM', list, Unit.deleted)
  end
  call_many('HDEL', JOB, Unit.deleted)
  call_many('HDEL', ROW, Unit.deleted)
  Unit.zsets, Unit.sets, Unit.maybe_empty, Unit.deleted = {}, {}, {}, {}
end

local function cost_of(job, key)
  for _, limit in ipairs(job.limits) do
    if limit[1] == key then return limit[2] end
  end
  return 1
end

local function update_queues(row, views)
  local job = row.job
  if views.queue_position ~= row.queue_position then
    if views.queue_position then
      Unit.list_drop('line', job.queue, job.rank, row.id)
      if views.function_done or views.started_at then Unit.list_drop('fast', job.queue, job.rank, row.id) end
      if job.lane then call('ZREM', Unit.lane_key(job), row.id) end
    end
    if row.queue_position then
      Unit.list_add('line', job.queue, job.rank, row.queue_position, row.id)
      if row.function_done or row.started_at then
        Unit.list_add('fast', job.queue, job.rank, row.queue_position, row.id)
      end
      if job.lane then call('ZADD', Unit.lane_key(job), num(row.queue_position), row.id) end
    end
  end
  local was, is = views.queue_position and views.blocked_on, row.queue_position and row.blocked_on
  if was ~= is then
    if was then call('HDEL', ns .. ':back:' .. Unit.blocked_key(was, job.queue), row.id) end
    if is then
      local turn = ':' .. job.rank .. ':' .. num(row.queue_position)
      call('HSET', ns .. ':back:' .. Unit.blocked_key(is, job.queue), row.id, (row.started_at and '1' or '0')
        .. cost_of(job, is) .. turn)
    end
  end
  was, is = not views.queue_position and views.blocked_on, not row.queue_position and row.blocked_on
  if was ~= is then
    if was then
      local key, queues = Unit.blocked_key(was, job.queue), ns .. ':queues:' .. was
      Unit.first_blocked[key] = nil
      for _, kind in ipairs({ 'aside', 'kept' }) do    -- written at once: these lists are read before `flush`
        local list = ns .. ':' .. kind .. ':' .. job.rank .. ':' .. key
        call('ZREM', list, row.id)
        Unit.drop_if_empty(kind, key, job.rank, list)
      end
      if call('EXISTS', ns .. ':asides:' .. key) == 0 then
        call('SREM', queues, job.queue)
        if call('EXISTS', queues) == 0 then call('SREM', ns .. ':asides', was) end
      end
    end
    if is then
      local key = Unit.blocked_key(is, job.queue)
      Unit.list_add('aside', key, job.rank, row.return_position or 0, row.id)
      if row.started_at then Unit.list_add('kept', key, job.rank, row.return_position or 0, row.id) end
      call('SADD', ns .. ':queues:' .. is, job.queue)
      call('SADD', ns .. ':asides', is)
      Unit.blocks_none[is], Unit.first_blocked[key], Unit.any_blocked = nil, nil, true
    end
  end
end

local function update_slots(row, views)
  local was, is = views.known and views.started_at and views.state < SUCCEEDED, row.started_at and row.state < SUCCEEDED
  if (was or false) ~= (is or false) then add_costs(row.job, is and 1 or -1, BEGUN) end
  was, is =
    views.known and views.state == RUNNING and not views.function_done, row.state == RUNNING and not row.function_done
  if (was or false) ~= (is or false) then add_costs(row.job, is and 1 or -1, LIVE) end
end

-- Count the rows that prune must keep: those that an unfinished row waits for, and the rest of its workflow.
local function update_needs(row, views)
  local was, is = views.known and views.state < SUCCEEDED or false, row.state < SUCCEEDED
  if was ~= is or views.after ~= row.after then
    if was then for _, up in ipairs(views.after) do Unit.add(ns .. ':needs', up, -1) end end
    if is then for _, up in ipairs(row.after) do Unit.add(ns .. ':needs', up, 1) end end
  end
  if was ~= is and row.job.root then Unit.add(ns .. ':roots', row.job.root, is and 1 or -1) end
end

-- List an unfinished row under each of its labels that begin with "treadle:".
local function update_labels(row, views)
  local was, is = views.known and views.state < SUCCEEDED or false, row.state < SUCCEEDED
  for _, label in ipairs(was ~= is and row.job.own_labels or NOTHING) do
    note_change(Unit.zsets, ns .. ':label:' .. label, row.id, is and row.created_at)
  end
end

-- Note the change of the list that has this row; see kinds.lua.
local function update_lists(row, views)
  local was, old = Kinds.entry_of(views, row.created_at)
  local is, new = Kinds.entry_of(row, row.created_at)
  if was and was ~= is then note_change(Unit.zsets, Kinds.list_of(was, row.job.queue), row.id, false) end
  if is and (was ~= is or old ~= new) then note_change(Unit.zsets, Kinds.list_of(is, row.job.queue), row.id, new) end
end

local function update_counts(row, views)
  local was, is = views.known and Kinds.counted_as(views) or nil, Kinds.counted_as(row)
  if was ~= is then Kinds.count(was, is, row.job, row.created_at, row.id) end
end

function Unit.put(row)
  local views, id = row.views, row.id
  update_queues(row, views)
  update_counts(row, views)
  local was, is = views.state == RUNNING and views.worker or nil, row.state == RUNNING and row.worker or nil
  if was ~= is then
    if was then note_change(Unit.sets, ns .. ':held:' .. was, id, false) end
    if is then note_change(Unit.sets, ns .. ':held:' .. is, id, true) end
  end
  note_score(DUE, id, views.due_at, row.due_at)
  update_lists(row, views)
  update_slots(row, views)
  update_needs(row, views)
  update_labels(row, views)
  note_score(OLD, id, views.expires_at, row.expires_at)
  note_score(ENDED, id, views.ended_at and -views.ended_at, row.ended_at and -row.ended_at)
  if row.queue_position then Unit.topics['queue:' .. row.job.queue] = true end
  if row.state >= SUCCEEDED then Unit.ended[id] = true end
  note_views(row)
  Unit.dirty[id] = true
end

-- Remove the row from all views; the next `flush` deletes it.
function Unit.delete(row)
  Unit.deleted[#Unit.deleted + 1] = row.id
  Kinds.count(Kinds.counted_as(row.views), nil, row.job, row.created_at, row.id)
  if row.has_checkpoints then call('DEL', Row.checkpoints_key(row.id)) end
  if row.state == FAILED then note_change(Unit.zsets, Kinds.list_of('failed', row.job.queue), row.id, false) end
  if LATER_SHARD and row.job.root then call('SREM', ns .. ':tree:' .. row.job.root, row.id) end
  Unit.rows[row.id], Unit.dirty[row.id] = false, nil
end

-- --- queueing

function Unit.queue_job(row, moment)
  local position = row.return_position or Unit.queue_position_of(row.job, moment)
  row.state, row.queue_position, row.return_position, row.blocked_on = READY, position, position, nil
  row.due_at = nil
  if not row.function_done then row.due_at = row.deadline_at end
  Unit.put(row)
end

function Unit.queue_position_of(job, moment)
  local position = moment
  if (job.aging or 0) ~= 0 then position = moment - job.aging * job.priority end
  if not job.lane then return position end
  local last = call('ZRANGE', Unit.lane_key(job), -1, -1, 'WITHSCORES')
  if last[2] then return tonumber(last[2]) + (job.stride or 1) end
  local head = call('ZRANGE', ns .. ':line:' .. job.rank .. ':' .. job.queue, 0, 0, 'WITHSCORES')
  return head[2] and math.min(position, tonumber(head[2])) or position
end

function Unit.next_due_time()
  local due, opens = call('ZRANGE', DUE, 0, 0, 'WITHSCORES'), call('ZRANGE', OPENS, 0, 0, 'WITHSCORES')
  due, opens = tonumber(due[2]), tonumber(opens[2])
  if due and opens then due = math.min(due, opens) end
  return due or opens
end

-- --- the end of a call

local function publish_topics(channel, topics)
  if #topics > 0 then publish(ns .. channel, cmsgpack.pack(topics)) end
end

function Unit.write()
  Unit.flush()
  local changed = {}
  for id in pairs(Unit.dirty) do
    changed[#changed + 1] = id
    changed[#changed + 1] = Row.bytes(Unit.rows[id])
  end
  call_many('HSET', ROW, changed, 2)
  for hash, fields in pairs(Unit.counts) do
    local set, removed = {}, {}
    for field, counter in pairs(fields) do
      local number = counter.value
      if number ~= counter.stored then
        if number == 0 then removed[#removed + 1] = field else set[#set + 1], set[#set + 2] = field, number end
        counter.stored = number
      end
    end
    call_many('HSET', hash, set, 2)
    call_many('HDEL', hash, removed)
  end
  Unit.dirty = {}
end

function Unit.finish()
  Unit.write()
  local topics = {}
  for topic in pairs(Unit.topics) do topics[#topics + 1] = topic end
  publish_topics(':say', topics)
  topics = {}
  for id in pairs(Unit.ended) do topics[#topics + 1] = 'job:' .. id end
  publish_topics(':ends', topics)
end
