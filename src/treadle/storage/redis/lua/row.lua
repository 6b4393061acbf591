-- Converts jobs between bytes and tables. rows.py uses the same layout.
--
-- job: flags rank keep keep_failed, lengths of task queue head | task queue head | the NewJob, opaque | created_at
-- row: state flags version pending failures_allowed attempt lost reopenings keep keep_failed created_at, moments, rank,
--      lengths of worker queue | worker queue tail
-- A job without a row is plain and queued since it was stored. A plain job has only a priority, a lane and limits. Its
-- row ends with the limits as msgpack instead of a tail, and while it runs with the task after them (\218 and its
-- length, as msgpack has it), so that settling it need not read the job.
local ROW_FORMAT = '>BBI4i4i4I4I4I4dddddddddddhHH'
local ROW_SIZE = 120
Row = {}
local NOTHING = {}                       -- never written to

local function moment_or_nil(x) if x ~= NONE then return x end end
Row.moment_or_nil = moment_or_nil
local function or_nil(x) if x then return x end end

-- Note the values that the views have. A constructor with all fields allocates the table in its full size.
local function note_views(row)
  local views = row.views
  if views and views.known then
    views.queue_position, views.return_position, views.blocked_on, views.state, views.worker =
      row.queue_position, row.return_position, row.blocked_on, row.state, row.worker
    views.due_at, views.started_at, views.function_done, views.after =
      row.due_at, row.started_at, row.function_done, row.after
    views.ended_at, views.expires_at = row.ended_at, row.expires_at
  else
    row.views = {
      known = true, queue_position = row.queue_position, return_position = row.return_position,
      blocked_on = row.blocked_on, state = row.state, worker = row.worker, due_at = row.due_at,
      started_at = row.started_at, function_done = row.function_done, after = row.after, ended_at = row.ended_at,
      expires_at = row.expires_at,
    }
  end
end

function Row.job(id, body)
  local flags, rank, keep, keep_failed, task_length, queue_length, head_length = struct.unpack('>BhddHHI4', body)
  local queue_start = 28 + task_length
  local head_start = queue_start + queue_length
  local job = head_length > 0 and cmsgpack.unpack(sub(body, head_start, head_start + head_length - 1)) or {}
  job.plain, job.rank, job.keep, job.keep_failed = flags == PLAIN, rank, keep, keep_failed
  job.id, job.task, job.queue = id, sub(body, 28, queue_start - 1), sub(body, queue_start, head_start - 1)
  if job.failures_allowed == nil then
    job.failures_allowed = 0
  elseif job.failures_allowed == false then
    job.failures_allowed = nil
  end
  job.after, job.limits = job.after or NOTHING, job.limits or NOTHING
  return job
end

Row.whole = whole

function Row.checkpoints_key(id) return ns .. ':checkpoints:' .. id end

-- Store checkpoints of a job, each as "<number>:<text>" under its name. Readers sort them by this number. No script
-- reads them all, except to return them: a job may have thousands.
function Row.remember(row, added)
  if #added == 0 then return end
  local key, names, latest = Row.checkpoints_key(row.id), {}, {}
  for _, pair in ipairs(added) do
    if latest[pair[1]] == nil then names[#names + 1] = pair[1] end
    latest[pair[1]] = pair[2]
  end
  local stored, next_number, values = fetch(key, names), call('HLEN', key), {}
  for k, name in ipairs(names) do
    local number = stored[k] and string.match(stored[k], '^%d+')
    if not number then number, next_number = next_number, next_number + 1 end
    values[2 * k - 1], values[2 * k] = name, number .. ':' .. latest[name]
  end
  call_many('HSET', key, values, 2)
  row.has_checkpoints = true
end

-- Delete the checkpoints of a job, except those whose name begins with "treadle:". These are numbered anew, because the
-- next number is how many there are.
local function forget_steps(row)
  local key, stored, kept, values = Row.checkpoints_key(row.id), nil, {}, {}
  stored = call('HGETALL', key)
  for k = 1, #stored, 2 do
    if sub(stored[k], 1, 8) == 'treadle:' then
      local number, text = string.match(stored[k + 1], '^(%d+):(.*)$')
      kept[#kept + 1] = { tonumber(number), stored[k], text }
    end
  end
  table.sort(kept, function(a, b) return a[1] < b[1] end)
  for k, entry in ipairs(kept) do values[2 * k - 1], values[2 * k] = entry[2], k - 1 .. ':' .. entry[3] end
  call('DEL', key)
  call_many('HSET', key, values, 2)
end

-- Store the checkpoints of an outcome. Those of a restart replace the steps.
function Row.remember_anew(row, added)
  for _, pair in ipairs(added) do
    if pair[1] == 'treadle:round' then forget_steps(row) end
  end
  Row.remember(row, added)
end

-- Whether the job has all these checkpoints, a table of texts by name.
function Row.remembers(row, wanted)
  local names = {}
  for name in pairs(wanted) do names[#names + 1] = name end
  for k, stored in ipairs(fetch(Row.checkpoints_key(row.id), names)) do
    if not stored or string.match(stored, '^%d+:(.*)$') ~= wanted[names[k]] then return false end
  end
  return true
end

-- Returns the NewJob itself. `stored`: created_at follows it.
function Row.new_job(body, stored)
  local task_length, queue_length, head_length = struct.unpack('>HHI4', body, 20)
  return cmsgpack.unpack(sub(body, 28 + task_length + queue_length + head_length, stored and -9 or -1))
end

-- Replace the spans of a job by those of its instants; see row_rules.delay_of.
local function set_spans(job, made)
  if job.run_at then job.delay = math.max(0, job.run_at - made) end
  if job.deadline_at then job.deadline = math.max(0, job.deadline_at - made) end
end

-- Returns a new row, before it is queued or scheduled or waits.
function Row.fresh(id, job, made)
  set_spans(job, made)
  return {
    id = id, job = job, state = WAITING, version = 0, after = job.after, pending = 0,
    failures_allowed = job.failures_allowed, function_done = job.function_done or false, attempt = 0, lost = 0,
    reopenings = 0, has_checkpoints = false, created_at = made, updated_at = made, views = NOTHING,
    queue_position = nil, return_position = nil, due_at = nil, deadline_at = nil, worker = nil, started_at = nil,
  }
end

function Row.read(id, body, raw)
  local job, stored_at = Row.job(id, body), struct.unpack('>d', body, #body - 7)
  if not raw then
    local row = Row.fresh(id, job, stored_at)
    row.state, row.queue_position, row.return_position = READY, stored_at, stored_at
    note_views(row)
    return row
  end
  local state, flags, version, pending, failures_allowed, attempt, lost, reopenings, _, _, created_at, position,
    return_position, due_at, deadline_at, started_at, updated_at, ended_at, expires_at, _, worker_length, queue_length =
      struct.unpack(ROW_FORMAT, raw)
  set_spans(job, created_at)
  local row = {
    id = id, job = job, has_checkpoints = flags >= NOTED, after = job.after, state = state, version = version,
    pending = pending,
    failures_allowed = failures_allowed ~= ANY and failures_allowed or nil, attempt = attempt, lost = lost,
    reopenings = reopenings, created_at = created_at, queue_position = moment_or_nil(position),
    return_position = moment_or_nil(return_position), due_at = moment_or_nil(due_at),
    deadline_at = moment_or_nil(deadline_at), started_at = moment_or_nil(started_at), updated_at = updated_at,
    ended_at = moment_or_nil(ended_at), expires_at = moment_or_nil(expires_at),
    worker = worker_length > 0 and sub(raw, ROW_SIZE + 1, ROW_SIZE + worker_length) or nil,
    function_done = math.floor(flags / RAN) % 2 == 1,
    blocked_on = nil, result = nil, error = nil, reason = nil, views = nil,
  }
  if flags >= TAIL then
    local tail = cmsgpack.unpack(sub(raw, ROW_SIZE + worker_length + queue_length + 1))
    row.after, row.blocked_on = tail[1] or job.after, or_nil(tail[2])
    row.result, row.value, row.error, row.reason = or_nil(tail[3]), or_nil(tail[4]), or_nil(tail[5]), or_nil(tail[6])
    row.note, row.ups = or_nil(tail[7]), or_nil(tail[8])
  end
  note_views(row)
  return row
end

function Row.bytes(row)
  local job, worker, flags, tail = row.job, row.worker or '', 0, ''
  if job.plain then flags = PLAIN end
  if row.function_done then flags = flags + RAN end
  if job.plain and row.state == RUNNING then
    tail = (#job.limits > 0 and cmsgpack.pack(job.limits) or '\144') .. '\218' .. struct.pack('>H', #job.task)
      .. job.task
  elseif job.plain and #job.limits > 0 then
    tail = cmsgpack.pack(job.limits)
  end
  if row.after ~= job.after or row.blocked_on or row.result or row.value or row.error or row.reason
    or row.has_checkpoints or row.note or row.ups then
    flags = flags + TAIL + (row.has_checkpoints and NOTED or 0)
    tail = cmsgpack.pack({
      row.after ~= job.after and row.after, row.blocked_on or false, row.result or false, row.value or false,
      row.error or false, row.reason or false, row.note or false, row.ups or false,
    })
  end
  return struct.pack(ROW_FORMAT, row.state, flags, row.version, row.pending, row.failures_allowed or ANY,
    row.attempt, row.lost, row.reopenings, job.keep, job.keep_failed, row.created_at, row.queue_position or NONE,
    row.return_position or NONE, row.due_at or NONE, row.deadline_at or NONE, row.started_at or NONE, row.updated_at,
    row.ended_at or NONE, row.expires_at or NONE, job.rank, #worker, #job.queue) .. worker .. job.queue .. tail
end
