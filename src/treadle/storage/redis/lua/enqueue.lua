-- The bulk path of enqueue. ARGV: now, call, until (part.lua), then groups: queue, rank, n, number of their tasks, each
-- task with the number of its jobs, n times id body. All jobs are plain, and no id occurs twice.
-- Returns { now, the positions of the new jobs with a lane, 8 bytes each, then number in the call, body, row of each
-- job that was stored before }; or { '', what is wrong, ... } and stores nothing; or { '\3' } if jobs must be shed, which
-- only the per-row path does.
local NOW, NO_HEAD = num(now), '\0\0\0\0'

local function line_of(queue, rank)
  return { queue = queue, rank = rank, list = ns .. ':line:' .. rank .. ':' .. queue, kinds = {} }
end

-- The lane, stride and limits of a job, read once for all jobs of the queue whose bodies begin alike.
local function kind_of(body, line, lanes)
  local tl, ql, hl = struct.unpack('>HHI4', body, 20)
  local head = sub(body, 28 + tl + ql, 27 + tl + ql + hl)
  local kind = line.kinds[head]
  if not kind then
    local words = cmsgpack.unpack(head)
    kind = { stride = words.stride or 1 }
    if words.lane then
      local key = lane_of(line.queue, line.rank, words.lane)
      lanes[key] = lanes[key] or { add = {}, last = tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) }
      kind.lane = lanes[key]
      kind.head = struct.pack('>BBI4i4i4I4I4I4', READY, PLAIN, 0, 0, 0, 0, 0, 0)
      kind.rest = string.rep(NONE_BYTES, 3) .. NOW_BYTES .. NONE_BYTES .. NONE_BYTES .. sub(body, 2, 3)
        .. struct.pack('>HH', 0, ql) .. line.queue .. (words.limits and cmsgpack.pack(words.limits) or '')
    end
    line.kinds[head] = kind
  end
  return kind
end

-- the position: after the last job of its lane, otherwise that of the first job of the queue; see B.queue_position
local function place_in(kind, line)
  local lane = kind.lane
  if lane.last then
    lane.last = lane.last + kind.stride
  else
    if not line.first then
      line.first = math.min(now, tonumber(call('ZRANGE', line.list, 0, 0, 'WITHSCORES')[2]) or now)
    end
    lane.last = line.first
  end
  return lane.last
end

local function task_of(body) return sub(body, 28, 27 + struct.unpack('>H', body, 20)) end

local known, at, number, width = { NOW, '' }, 4, 0, #ARGV
local topics, seen, positions = {}, {}, {}
if asks then
  local ids, k = {}, 4
  while k < width do
    local n = tonumber(ARGV[k + 2])
    k = k + 4 + 2 * ARGV[k + 3]
    for _ = 1, n do
      ids[#ids + 1] = ARGV[k]
      k = k + 2
    end
  end
  if has_left(ids) then return { '\1' } end
end
if bounded then
  local queues, asked, from = {}, {}, 4
  while from < width do
    local queue, n = ARGV[from], tonumber(ARGV[from + 2])
    from = from + 2 + 2 * ARGV[from + 3]
    if bound_of(queue) then
      local ids = {}
      for k = 1, n do ids[k] = ARGV[from + 2 * k] end
      if not asked[queue] then queues[#queues + 1], asked[queue] = queue, 0 end
      for _, body in ipairs(fetch(JOB, ids)) do
        if not body then asked[queue] = asked[queue] + 1 end
      end
    end
    from = from + 2 + 2 * n
  end
  for _, queue in ipairs(queues) do
    local rule, waiting = bound_of(queue), waiting_in(queue)
    if excess(rule, waiting, asked[queue]) > 0 then
      return rule.when_full == 'refuse' and full(queue, rule, waiting, asked[queue]) or { '\3' }
    end
  end
end
local watch = recount()
while at < width do
  local queue, rank, n = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local ids, bodies, from, new = {}, {}, at + 2 + 2 * ARGV[at + 3], 'queued:' .. queue .. '\0'
  for k = at + 4, done and 0 or from, 2 do
    local field = new .. ARGV[k]
    counts[field] = (counts[field] or 0) + ARGV[k + 1]
  end
  for k = 1, n do ids[k], bodies[k] = ARGV[from + 2 * k], ARGV[from + 1 + 2 * k] end
  local have, line, lanes = fetch(JOB, ids), line_of(queue, rank), {}
  local set, turns, made, rows, m, least = {}, {}, {}, {}, 0, now
  for k = 1, n do
    local id, body = ids[k], bodies[k]
    if have[k] then
      known[#known + 1] = number + k
      known[#known + 1] = have[k]
      known[#known + 1] = call('HGET', ROW, id) or ''
      local field = not done and new .. task_of(body)
      if field then counts[field] = counts[field] - 1 end
    elseif not done then
      local turn = NOW
      if watch then watch.follow(now, id, nil, new .. task_of(body)) end
      if sub(body, 24, 27) ~= NO_HEAD then
        local kind = kind_of(body, line, lanes)
        if kind.lane then
          local lane, position = kind.lane, place_in(kind, line)
          turn, least = num(position), math.min(least, position)
          lane.add[#lane.add + 1], lane.add[#lane.add + 2] = turn, id
          position = struct.pack('>d', position)
          positions[#positions + 1] = position
          rows[#rows + 1], rows[#rows + 2] = id, kind.head .. sub(body, 4, 19) .. NOW_BYTES .. position .. position .. kind.rest
        end
      end
      set[m + 1], set[m + 2] = id, body .. NOW_BYTES
      turns[m + 1], turns[m + 2] = turn, id
      made[m + 1], made[m + 2] = NOW, id
      m = m + 2
    end
  end
  if m > 0 then
    many('HSET', JOB, set, 2)
    many('HSET', ROW, rows, 2)
    many('ZADD', line.list, turns, 2)
    unskip(rank, queue, least)
    many('ZADD', MADE, made, 2)
    for key, lane in pairs(lanes) do many('ZADD', key, lane.add, 2) end
    call('ZADD', ns .. ':lines:' .. queue, -rank, rank)
    call('SADD', ns .. ':lines', queue)
    if not seen[queue] then
      seen[queue] = true
      topics[#topics + 1] = 'queue:' .. queue
    end
  end
  number, at = number + n, from + 2 + 2 * n
end
if #topics > 0 and not (number == 1 and not KEYS[3] and handed(ARGV[4])) then hint(ns .. ':say', cmsgpack.pack(topics)) end
if ARGV[2] ~= '' and not done then call('ZADD', ns .. ':done', '+inf', ARGV[2]) end
known[2] = table.concat(positions)
