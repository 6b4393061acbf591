-- ARGV: now, ..., the claim as msgpack. A claim over several shards adds `advanced` (due rows are advanced already) and
-- `more` (claim even if the claim id has jobs here).
-- Returns { now, next due time or '', again, body, row, ... }, the times as 8 bytes.
-- again: 1 if the claim is repeated, 2 if there are more jobs to check. Without jobs, 2 may be followed by how far it
-- has looked, which the next call passes as `passed`.
do
  if quiet == nil then quiet = call('EXISTS', MOVE, RULES, OPENS, RECOUNT) == 0 end
  local mark = away()
  if mark then return mark end
end
B = nil                                  -- a settle earlier in this script has flushed its rows
local ask = asked or cmsgpack.unpack(ARGV[#ARGV])
local LOOK_MOST = asked and 100 or 5000  -- rows of other tasks that one call passes; Python then calls again
local SAVE, SETS = 100, 16               -- passed rows worth an entry in `skips`; sets of tasks noted for a queue
local BLOCKED_MOST = 500                   -- jobs blocked in one call, during which the server does nothing else
local aside = 0
local bodies, rows, n = {}, {}, 0

-- --- due rows, and the next due time

local limited = not quiet and call('EXISTS', RULES, OPENS) > 0
local due = tonumber(call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2])
local opens = limited and tonumber(call('ZRANGE', OPENS, 0, 0, 'WITHSCORES')[2]) or nil
local calm = (due or now + 1) > now and (opens or now + 1) > now
local ruled = limited and call('EXISTS', RULES) == 1

local function count(key, cost)
  if B then
    B.add(LIVE, key, cost)
    B.add(BEGUN, key, cost)
  else
    owe(key, cost)
  end
end

-- no hand-off while limits exist or rows are due: an enqueue must stay cheap
if asked and not (calm and not ruled) then return {} end

local function least(a, b)
  if a and b then return math.min(a, b) end
  return a or b
end

local room, holds, limit = {}, {}, asked and 1 or ask.limit
local tasks = ask.tasks
local sated, set = false, nil            -- no task has room; the tasks with room as one name (`set_of_tasks`)
local function look_for_room()
  sated, set = tasks ~= nil, nil
  for task in pairs(tasks or {}) do
    if (room[task] or 1) > 0 then sated = false end
  end
end

local function wanted(id, task)
  return not holds[id] and (not tasks or tasks[task]) and (room[task] or 1) > 0
end

local function lease_of(task) return tasks and tasks[task][2] or ask.lease end

-- --- the per-row path, defined when it is needed

local S
local function go_slowly()
  if B then return end
  slowly()
  A.some, S = ruled, {}

  local turn = {}                        -- one table for all jobs
  local function turn_of(id, rank, position)
    turn.id, turn.rank, turn.queue_position = id, rank, position
    return turn
  end

  -- the time at which the rate of a claimed queue admits its next job
  function S.next_of_queues()
    local queues, moment = {}, nil
    for _, each in ipairs(ask.queues) do queues[each[1]] = true end
    if #ask.ids > 0 then
      queues = {}
      B.load(ask.ids)
      for _, id in ipairs(ask.ids) do
        local r = B.get(id)
        if r and E.within(ask.reach, r.j.queue) then queues[r.j.queue] = true end
      end
    end
    for queue in pairs(queues) do
      local key = 'queue:' .. queue
      local rule = A.rule(key)
      if rule and rule.rate and call('EXISTS', ns .. ':lines:' .. queue) == 1 then
        moment = least(moment, A.opens_at(rule, key, 1))
      end
    end
    return moment
  end

  -- Check the limit of its queue, then its own limits. If one of its own is shut, or a costly job before it waits for
  -- that limit, block the job.
  function S.admit(r)
    if r.function_done then return true end
    local j, kept, shut = r.j, r.started_at ~= nil, nil
    if not A.fits('queue:' .. j.queue, 1, kept) then return false end
    for _, cost in ipairs(j.limits) do
      if not A.fits(cost[1], cost[2], kept) then shut = cost[1] break end
    end
    if not shut and #j.limits > 0 and A.any_aside() then
      shut = A.held_back_by(j.limits, kept, j.queue, turn_of(r.id, j.rank, r.queue_position))
    end
    if not shut then
      A.spend('queue:' .. j.queue, 1)
      for _, cost in ipairs(j.limits) do A.spend(cost[1], cost[2]) end
      return true
    end
    local before = r.blocked_on
    r.queue_position, r.blocked_on, r.due_at = nil, shut, r.deadline_at
    B.put(r)
    A.set_opening(shut)
    aside = aside + 1
    if before and before ~= shut then A.call_in_for(before) end
    return false
  end

  function S.lease(r, body)
    r.version, r.state, r.queue_position, r.blocked_on, r.worker = r.version + 1, RUNNING, nil, nil, ask.worker
    local own = r.j.lease
    if own == 0 then own = nil end
    r.due_at, r.started_at, r.updated_at = now + (own or lease_of(r.j.task)), now, now
    B.put(r)
    if r.j.started and not E.keeps_key(r) then E.drop_key(r) end
    n = n + 1
    bodies[n], rows[n] = body or false, r
    if room[r.j.task] then
      room[r.j.task] = room[r.j.task] - 1
      if room[r.j.task] == 0 then look_for_room() end
    end
  end

  function S.lets_in(limits, queue, rank, id, body, raw)
    for k = 1, #limits do
      if not A.fits(limits[k][1], limits[k][2], false) then return false end
    end
    if #limits > 0 and A.any_aside() then
      local position = raw and struct.unpack('>d', raw, 51) or struct.unpack('>d', body, #body - 7)
      if A.held_back_by(limits, false, queue, turn_of(id, tonumber(rank), position)) then return false end
    end
    for k = 1, #limits do
      A.spend(limits[k][1], limits[k][2])
      count(limits[k][1], limits[k][2])
    end
    return true
  end

  -- the number of members of a list up to and including a spot
  function S.offset_behind(list, score, id)
    local added = call('ZADD', list, 'NX', num(score), id)
    local rank = call('ZRANK', list, id)
    if added == 1 then
      call('ZREM', list, id)
      return rank
    end
    return rank + 1
  end

  -- Claim these jobs and no others, in queue order.
  function S.pick(ids)
    B.load(ids)
    local queues, named, seen = {}, {}, {}
    for _, id in ipairs(ids) do
      local r = B.get(id)
      if r and E.within(ask.reach, r.j.queue) and not seen[id] then
        seen[id] = true
        local queue = r.j.queue
        if not named[queue] then
          named[queue] = {}
          queues[#queues + 1] = queue
        end
        if r.queue_position then table.insert(named[queue], r) end
      end
    end
    for _, queue in ipairs(queues) do
      table.sort(named[queue], function(a, b)
        if a.j.rank ~= b.j.rank then return a.j.rank > b.j.rank end
        if a.queue_position ~= b.queue_position then return a.queue_position < b.queue_position end
        return earlier(a.id, b.id)
      end)
      for _, r in ipairs(named[queue]) do
        if n < limit and r.queue_position and wanted(r.id, r.j.task) and S.admit(r) then S.lease(r) end
      end
    end
  end
end

if ruled or not calm then go_slowly() end

-- `due` and `opens` were read at the start; `due` includes plain jobs leased since. The per-row path reads both again.
local function answer(again)
  local moment = least(due, opens)
  if B then moment = least(B.next_moment(), ruled and S.next_of_queues()) end
  local list = { NOW_BYTES, moment and struct.pack('>d', moment) or '', again }
  for k = 1, n do list[2 * k + 2], list[2 * k + 3] = bodies[k], rows[k] end
  return list
end

local HELD = ns .. ':held:' .. ask.worker
local held = call('SMEMBERS', HELD)
if #held > 0 and not ask.more then
  bodies, rows, n = fetch(JOB, held), fetch(ROW, held), #held
  return answer(1)
end

if not ask.advanced and not calm then
  T.advance_due()
  B.write()
end

for task, words in pairs(tasks or {}) do room[task] = words[1] end
look_for_room()
for _, id in ipairs(ask.running) do holds[id] = true end

-- --- the bulk path for plain jobs: builds rows from bytes without unpacking them, and their common parts once

local hot_ids, hot_set, hot_due, hot = {}, {}, {}, 0
local HEAD = struct.pack('>BBI4i4i4I4I4I4', RUNNING, PLAIN, 1, 0, 0, 0, 0, 0)
local watch = recount()
local moments = {}                       -- lease -> due_at to expires_at as bytes, the score, the time
local versions = {}                      -- version as bytes -> the start of a row with the next version

local function moments_of(task)
  local seconds = lease_of(task)
  local m = moments[seconds]
  if not m then
    local ends = now + seconds
    m = { struct.pack('>dd', ends, NONE) .. NOW_BYTES .. NOW_BYTES .. NONE_BYTES .. NONE_BYTES, num(ends), ends }
    moments[seconds] = m
  end
  return m
end

-- jobs of a queue whose values are equal up to the payload
local function kind_of(body, kinds)
  local tl, ql, hl = struct.unpack('>HHI4', body, 20)
  local begin = sub(body, 1, 27 + tl + ql + hl)
  local kind = kinds[begin]
  if not kind then
    kind = { begin = begin, length = #begin, plain = byte(body) == PLAIN, task = sub(body, 28, 27 + tl),
             asks = sub(begin, 28 + tl + ql), taken = 0, tail = nil }
    kinds[begin] = kind
  end
  return kind
end

-- Build the common parts of the rows of a kind. `gone`: claimed jobs, to be removed from their lane.
local function prepare(kind, queue, rank)
  local words = kind.asks ~= '' and cmsgpack.unpack(kind.asks) or {}
  local limits, m = priced(words.limits or {}), moments_of(kind.task)
  kind.limits, kind.gone, kind.score = limits, {}, m[2]
  kind.was, kind.is = 'queued:' .. queue .. '\0' .. kind.task, 'running:' .. queue .. '\0' .. kind.task
  kind.lane = words.lane and lane_of(queue, rank, words.lane)
  kind.head = HEAD .. sub(kind.begin, 4, 19)
  kind.tail = m[1] .. sub(kind.begin, 2, 3) .. struct.pack('>HH', #ask.worker, #queue) .. ask.worker .. queue
    .. (#limits > 0 and cmsgpack.pack(limits) or '\144') .. '\218' .. struct.pack('>H', #kind.task) .. kind.task
end

local function is_new(raw) return byte(raw) == READY and byte(raw, 2) == PLAIN and sub(raw, 83, 90) == NONE_BYTES end

local function lease_plain(id, body, raw, kind)
  local row
  if raw then
    local version = sub(raw, 3, 6)
    local higher = versions[version]
    if not higher then
      higher = sub(HEAD, 1, 2) .. struct.pack('>I4', struct.unpack('>I4', version) + 1)
      versions[version] = higher
    end
    row = higher .. sub(raw, 7, 50) .. NONE_BYTES .. sub(raw, 59, 66) .. kind.tail
  else
    local made = sub(body, -8)
    row = kind.head .. made .. NONE_BYTES .. made .. kind.tail
  end
  n, hot = n + 1, hot + 1
  bodies[n], rows[n], hot_ids[hot] = body, row, id
  hot_set[2 * hot - 1], hot_set[2 * hot] = id, row
  hot_due[2 * hot - 1], hot_due[2 * hot] = kind.score, id
  kind.taken = kind.taken + 1
  if watch then watch.follow((struct.unpack('>d', body, #body - 7)), id, kind.was, kind.is) end
  if kind.lane then kind.gone[kind.taken] = id end
end

-- Remove the claimed jobs of one page from the queue. `last`: it was the last page, so the queue may be empty. A
-- hand-off skips that check, which would take an enqueue four more commands; the next claim makes it.
local function leave_line(queue, rank, list, taken, kinds, last)
  call('ZREM', list, unpack(taken))
  if last and not asked then
    if B then B.list_swept('line', queue, rank, list) else swept('line', queue, rank, list) end
  end
  count('queue:' .. queue, #taken)
  for _, kind in pairs(kinds) do
    if kind.taken > 0 then
      many('ZREM', kind.lane, kind.gone)
      counts[kind.was] = (counts[kind.was] or 0) - kind.taken
      counts[kind.is] = (counts[kind.is] or 0) + kind.taken
      for _, cost in ipairs(ruled and {} or kind.limits) do count(cost[1], cost[2] * kind.taken) end
    end
  end
  for _, m in pairs(moments) do due = least(due, m[3]) end
end
