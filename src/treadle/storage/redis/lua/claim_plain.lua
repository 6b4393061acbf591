if has_rules or not nothing_due then use_row_path() end

-- `due` and `opens_at` were read at the start; `due` includes plain jobs leased since. The per-row path reads both
-- again.
local function answer(again)
  local moment = earliest(due, opens_at)
  if Unit then moment = earliest(Unit.next_due_time(), has_rules and Leasing.next_start()) end
  local list = { NOW_BYTES, moment and struct.pack('>d', moment) or '', again }
  for k = 1, n do list[2 * k + 2], list[2 * k + 3] = bodies[k], rows[k] end
  return list
end

local HELD = ns .. ':held:' .. request.worker
local held = call('SMEMBERS', HELD)
if #held > 0 and not request.more then
  bodies, rows, n = fetch(JOB, held), fetch(ROW, held), #held
  for k = 1, n do
    if byte(rows[k], 2) >= NOTED then
      use_row_path()
      rows[k] = Row.whole(held[k], rows[k])
    end
  end
  return answer(1)
end

if not request.advanced and not nothing_due then
  Due.advance_due()
  Unit.write()
end

for task, room_and_lease in pairs(tasks or {}) do room[task] = room_and_lease[1] end
update_room()
for _, id in ipairs(request.running) do excluded[id] = true end

-- --- the bulk path for plain jobs: builds rows from bytes without unpacking them, and their common parts once

local plain_ids, plain_rows, plain_due, plain_count = {}, {}, {}, 0
local HEAD = struct.pack('>BBI4i4i4I4I4I4', RUNNING, PLAIN, 1, 0, 0, 0, 0, 0)
local ongoing = recount()
local lease_times = {}                       -- lease -> the bytes from due_at to expires_at, the score, the time
local versions = {}                      -- version as bytes -> the start of a row with the next version

local function lease_times_of(task)
  local seconds = lease_of(task)
  local times = lease_times[seconds]
  if not times then
    local ends = now + seconds
    times = { struct.pack('>dd', ends, NONE) .. NOW_BYTES .. NOW_BYTES .. NONE_BYTES .. NONE_BYTES, num(ends), ends }
    lease_times[seconds] = times
  end
  return times
end

-- Returns what the jobs of a queue have in common whose bodies are equal up to the payload.
local function kind_of(body, kinds)
  local task_length, queue_length, head_length = struct.unpack('>HHI4', body, 20)
  local begin = sub(body, 1, 27 + task_length + queue_length + head_length)
  local kind = kinds[begin]
  if not kind then
    kind = { begin = begin, length = #begin, plain = byte(body) == PLAIN,
             task = sub(body, 28, 27 + task_length), asks = sub(begin, 28 + task_length + queue_length), taken = 0,
             tail = nil }
    kinds[begin] = kind
  end
  return kind
end

-- Build the common parts of the rows of a kind. `gone`: claimed jobs, to be removed from their lane.
local function prepare_kind(kind, queue, rank)
  local wants = kind.asks ~= '' and cmsgpack.unpack(kind.asks) or {}
  local limits, times = wants.limits or {}, lease_times_of(kind.task)
  kind.limits, kind.gone, kind.score = limits, {}, times[2]
  kind.was, kind.is = 'queued:' .. queue .. '\0' .. kind.task, 'running:' .. queue .. '\0' .. kind.task
  kind.lane = wants.lane and lane_key(queue, rank, wants.lane)
  kind.head = HEAD .. sub(kind.begin, 4, 19)
  kind.tail = times[1] .. sub(kind.begin, 2, 3) .. struct.pack('>HH', #request.worker, #queue) .. request.worker
    .. queue
    .. (#limits > 0 and cmsgpack.pack(limits) or '\144') .. '\218' .. struct.pack('>H', #kind.task) .. kind.task
end

local function is_new(raw) return byte(raw) == READY and byte(raw, 2) == PLAIN and sub(raw, 83, 90) == NONE_BYTES end

local function lease_plain(id, body, raw, kind)
  local row_bytes
  if raw then
    local version = sub(raw, 3, 6)
    local higher = versions[version]
    if not higher then
      higher = sub(HEAD, 1, 2) .. struct.pack('>I4', struct.unpack('>I4', version) + 1)
      versions[version] = higher
    end
    row_bytes = higher .. sub(raw, 7, 50) .. NONE_BYTES .. sub(raw, 59, 66) .. kind.tail
  else
    local created_at = sub(body, -8)
    row_bytes = kind.head .. created_at .. NONE_BYTES .. created_at .. kind.tail
  end
  n, plain_count = n + 1, plain_count + 1
  bodies[n], rows[n], plain_ids[plain_count] = body, row_bytes, id
  plain_rows[2 * plain_count - 1], plain_rows[2 * plain_count] = id, row_bytes
  plain_due[2 * plain_count - 1], plain_due[2 * plain_count] = kind.score, id
  kind.taken = kind.taken + 1
  if ongoing then ongoing.follow((struct.unpack('>d', body, #body - 7)), id, kind.was, kind.is) end
  if kind.lane then kind.gone[kind.taken] = id end
end

-- Remove the claimed jobs of one page from the queue. After its last page the queue may be empty. A hand-off skips
-- that check, which would take an enqueue four more commands; the next claim makes it.
local function leave_queue(queue, rank, list, claimed_ids, kinds, is_last_page)
  call('ZREM', list, unpack(claimed_ids))
  if is_last_page and not open_claim then
    if Unit then Unit.drop_if_empty('line', queue, rank, list) else drop_if_empty('line', queue, rank, list) end
  end
  count('queue:' .. queue, #claimed_ids)
  for _, kind in pairs(kinds) do
    if kind.taken > 0 then
      call_many('ZREM', kind.lane, kind.gone)
      counts[kind.was] = (counts[kind.was] or 0) - kind.taken
      counts[kind.is] = (counts[kind.is] or 0) + kind.taken
      for _, limit in ipairs(has_rules and {} or kind.limits) do count(limit[1], limit[2] * kind.taken) end
    end
  end
  for _, times in pairs(lease_times) do due = earliest(due, times[3]) end
end
