-- The bulk path of enqueue. ARGV: now, call, until (part.lua), then groups: queue, rank, n, number of their tasks, each
-- task with the number of its jobs, n times id body. All jobs are plain, and no id occurs twice.
-- Returns { now, the positions of the new jobs with a lane, 8 bytes each, then number in the call, body, row of each
-- job that was stored before }; or { '', what is wrong, ... } and stores nothing; or { '\3' } if jobs must be shed,
-- which only the per-row path does.
local NOW, NO_HEAD = num(now), '\0\0\0\0'

local function list_of(queue, rank)
  return { queue = queue, rank = rank, list = ns .. ':line:' .. rank .. ':' .. queue, kinds = {} }
end

-- The lane, stride and limits of a job, read once for all jobs of the queue whose bodies begin alike.
local function kind_of(body, queue_list, lanes)
  local task_length, queue_length, head_length = struct.unpack('>HHI4', body, 20)
  local head = sub(body, 28 + task_length + queue_length, 27 + task_length + queue_length + head_length)
  local kind = queue_list.kinds[head]
  if not kind then
    local wants = cmsgpack.unpack(head)
    kind = { stride = wants.stride or 1 }
    if wants.lane then
      local key = lane_key(queue_list.queue, queue_list.rank, wants.lane)
      lanes[key] = lanes[key] or { add = {}, last = tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) }
      kind.lane = lanes[key]
      kind.head = struct.pack('>BBI4i4i4I4I4I4', READY, PLAIN, 0, 0, 0, 0, 0, 0)
      kind.rest = string.rep(NONE_BYTES, 3) .. NOW_BYTES .. NONE_BYTES .. NONE_BYTES .. sub(body, 2, 3)
        .. struct.pack('>HH', 0, queue_length) .. queue_list.queue
          .. (wants.limits and cmsgpack.pack(wants.limits) or '')
    end
    queue_list.kinds[head] = kind
  end
  return kind
end

-- Returns the position of a new job: behind the last job of its lane, or in an empty lane the position of the first job
-- of the queue. See `Unit.queue_position_of`.
local function place_in(kind, queue_list)
  local lane = kind.lane
  if lane.last then
    lane.last = lane.last + kind.stride
  else
    if not queue_list.first then
      queue_list.first = math.min(now, tonumber(call('ZRANGE', queue_list.list, 0, 0, 'WITHSCORES')[2]) or now)
    end
    lane.last = queue_list.first
  end
  return lane.last
end

local function task_of(body) return sub(body, 28, 27 + struct.unpack('>H', body, 20)) end

local answer, from_arg, number, width = { NOW, '' }, 4, 0, #ARGV
local topics, seen, positions = {}, {}, {}
if check_pointers then
  local ids, k = {}, 4
  while k < width do
    local n = tonumber(ARGV[k + 2])
    k = k + 4 + 2 * ARGV[k + 3]
    for _ = 1, n do
      ids[#ids + 1] = ARGV[k]
      k = k + 2
    end
  end
  if has_pointer(ids) then return { '\1' } end
end
if has_bounds then
  local queues, new_jobs, from = {}, {}, 4
  while from < width do
    local queue, n = ARGV[from], tonumber(ARGV[from + 2])
    from = from + 2 + 2 * ARGV[from + 3]
    if bound_of(queue) then
      local ids = {}
      for k = 1, n do ids[k] = ARGV[from + 2 * k] end
      if not new_jobs[queue] then queues[#queues + 1], new_jobs[queue] = queue, 0 end
      for _, body in ipairs(fetch(JOB, ids)) do
        if not body then new_jobs[queue] = new_jobs[queue] + 1 end
      end
    end
    from = from + 2 + 2 * n
  end
  for _, queue in ipairs(queues) do
    local rule, waiting = bound_of(queue), count_waiting(queue)
    if excess(rule, waiting, new_jobs[queue]) > 0 then
      return rule.when_full == 'refuse' and refusal_of(queue, rule, waiting, new_jobs[queue]) or { '\3' }
    end
  end
end
local ongoing = recount()
while from_arg < width do
  local queue, rank, n = ARGV[from_arg], ARGV[from_arg + 1], tonumber(ARGV[from_arg + 2])
  local ids, bodies, from, queued_as = {}, {}, from_arg + 2 + 2 * ARGV[from_arg + 3], 'queued:' .. queue .. '\0'
  for k = from_arg + 4, is_stored and 0 or from, 2 do
    local field = queued_as .. ARGV[k]
    counts[field] = (counts[field] or 0) + ARGV[k + 1]
  end
  for k = 1, n do ids[k], bodies[k] = ARGV[from + 2 * k], ARGV[from + 1 + 2 * k] end
  local stored, queue_list, lanes = fetch(JOB, ids), list_of(queue, rank), {}
  local new_bodies, new_positions, created, rows, count, lowest = {}, {}, {}, {}, 0, now
  for k = 1, n do
    local id, body = ids[k], bodies[k]
    if stored[k] then
      answer[#answer + 1] = number + k
      answer[#answer + 1] = stored[k]
      local row = call('HGET', ROW, id) or ''
      if row ~= '' and byte(row, 2) >= NOTED then         -- like whole.lua
        local packed = cmsgpack.pack(call('HGETALL', ns .. ':checkpoints:' .. id))
        row = row .. packed .. struct.pack('>I4', #packed)
      end
      answer[#answer + 1] = row
      local field = not is_stored and queued_as .. task_of(body)
      if field then counts[field] = counts[field] - 1 end
    elseif not is_stored then
      local position_text = NOW
      if ongoing then ongoing.follow(now, id, nil, queued_as .. task_of(body)) end
      if sub(body, 24, 27) ~= NO_HEAD then
        local kind = kind_of(body, queue_list, lanes)
        if kind.lane then
          local lane, position = kind.lane, place_in(kind, queue_list)
          position_text, lowest = num(position), math.min(lowest, position)
          lane.add[#lane.add + 1], lane.add[#lane.add + 2] = position_text, id
          position = struct.pack('>d', position)
          positions[#positions + 1] = position
          rows[#rows + 1], rows[#rows + 2] = id, kind.head .. sub(body, 4, 19) .. NOW_BYTES .. position .. position
            .. kind.rest
        end
      end
      new_bodies[count + 1], new_bodies[count + 2] = id, body .. NOW_BYTES
      new_positions[count + 1], new_positions[count + 2] = position_text, id
      created[count + 1], created[count + 2] = NOW, id
      count = count + 2
    end
  end
  if count > 0 then
    call_many('HSET', JOB, new_bodies, 2)
    call_many('HSET', ROW, rows, 2)
    call_many('ZADD', queue_list.list, new_positions, 2)
    adjust_skips(rank, queue, lowest)
    call_many('ZADD', MADE, created, 2)
    for key, lane in pairs(lanes) do call_many('ZADD', key, lane.add, 2) end
    call('ZADD', ns .. ':lines:' .. queue, -rank, rank)
    call('SADD', ns .. ':lines', queue)
    if not seen[queue] then
      seen[queue] = true
      topics[#topics + 1] = 'queue:' .. queue
    end
  end
  number, from_arg = number + n, from + 2 + 2 * n
end
if #topics > 0 and not (number == 1 and not KEYS[3] and hand_off(ARGV[4])) then
  publish(ns .. ':say', cmsgpack.pack(topics))
end
if ARGV[2] ~= '' and not is_stored then call('ZADD', ns .. ':done', '+inf', ARGV[2]) end
answer[2] = table.concat(positions)
