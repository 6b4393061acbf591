-- Converts jobs between bytes and tables. rows.py uses the same layout.
--
-- job: flags rank keep keep_failed, lengths of task queue head | task queue head | the NewJob, opaque | created_at
-- row: state flags version pending failures_allowed attempt lost reopenings keep keep_failed created_at, moments, rank,
--      lengths of worker queue | worker queue tail
-- A job without a row is plain and queued since it was stored. A plain job has only a priority, a lane and limits. Its
-- row ends with the limits as msgpack instead of a tail, and while it runs with the task behind them (\218 and its
-- length, as msgpack has it), so that settling it need not read the job.
local ROW_FORMAT = '>BBI4i4i4I4I4I4dddddddddddhHH'
local ROW_SIZE = 120
R = {}
local NOTHING = {}                       -- never written to

local function maybe(x) if x ~= NONE then return x end end
R.maybe = maybe
local function told(x) if x then return x end end

-- Note the values that the views have. A constructor with all fields allocates the table in its full size.
local function sight(r)
  local v = r.v
  if v and v.known then
    v.queue_position, v.return_position, v.blocked_on, v.state, v.worker = r.queue_position, r.return_position, r.blocked_on, r.state, r.worker
    v.due_at, v.started_at, v.function_done, v.after = r.due_at, r.started_at, r.function_done, r.after
    v.ended_at, v.expires_at = r.ended_at, r.expires_at
  else
    r.v = { known = true, queue_position = r.queue_position, return_position = r.return_position, blocked_on = r.blocked_on, state = r.state, worker = r.worker,
            due_at = r.due_at, started_at = r.started_at, function_done = r.function_done, after = r.after, ended_at = r.ended_at,
            expires_at = r.expires_at }
  end
end

function R.job(id, body)
  local flags, rank, keep, keep_failed, tl, ql, hl = struct.unpack('>BhddHHI4', body)
  local at = 28 + tl + ql
  local j = hl > 0 and cmsgpack.unpack(sub(body, at, at + hl - 1)) or {}
  j.plain, j.rank, j.keep, j.keep_failed = flags == PLAIN, rank, keep, keep_failed
  j.id, j.task, j.queue = id, sub(body, 28, 27 + tl), sub(body, 28 + tl, at - 1)
  if j.failures_allowed == nil then j.failures_allowed = 0 elseif j.failures_allowed == false then j.failures_allowed = nil end
  j.after, j.limits = j.after or NOTHING, priced(j.limits or NOTHING)
  return j
end

-- the NewJob itself; `stored`: created_at follows it
function R.words(body, stored)
  local tl, ql, hl = struct.unpack('>HHI4', body, 20)
  return cmsgpack.unpack(sub(body, 28 + tl + ql + hl, stored and -9 or -1))
end

-- a new row, before it is queued, scheduled or waits
function R.fresh(id, j, made)
  return { id = id, j = j, state = WAITING, version = 0, after = j.after, pending = 0, failures_allowed = j.failures_allowed, function_done = j.function_done or false,
           attempt = 0, lost = 0, reopenings = 0, checkpoints = NOTHING, created_at = made, updated_at = made, v = NOTHING,
           queue_position = nil, return_position = nil, due_at = nil, deadline_at = nil, worker = nil, started_at = nil }
end

function R.read(id, body, raw)
  local j, made = R.job(id, body), struct.unpack('>d', body, #body - 7)
  if not raw then
    local r = R.fresh(id, j, made)
    r.state, r.queue_position, r.return_position = READY, made, made
    sight(r)
    return r
  end
  local state, flags, version, pending, failures_allowed, attempt, lost, reopenings, _, _, created_at, position, return_position, due_at,
    deadline_at, started_at, updated_at, ended_at, expires_at, _, wl, ql = struct.unpack(ROW_FORMAT, raw)
  local r = {
    id = id, j = j, checkpoints = NOTHING, after = j.after, state = state, version = version, pending = pending,
    failures_allowed = failures_allowed ~= ANY and failures_allowed or nil, attempt = attempt, lost = lost, reopenings = reopenings, created_at = created_at,
    queue_position = maybe(position), return_position = maybe(return_position), due_at = maybe(due_at), deadline_at = maybe(deadline_at),
    started_at = maybe(started_at), updated_at = updated_at, ended_at = maybe(ended_at), expires_at = maybe(expires_at),
    worker = wl > 0 and sub(raw, ROW_SIZE + 1, ROW_SIZE + wl) or nil, function_done = math.floor(flags / RAN) % 2 == 1,
    blocked_on = nil, result = nil, error = nil, reason = nil, v = nil,
  }
  if flags >= TAIL then
    local t = cmsgpack.unpack(sub(raw, ROW_SIZE + wl + ql + 1))
    r.after, r.blocked_on = t[1] or j.after, told(t[2])
    r.result, r.value, r.error, r.reason = told(t[3]), told(t[4]), told(t[5]), told(t[6])
    r.checkpoints, r.note, r.ups = t[7] or NOTHING, told(t[8]), told(t[9])
  end
  sight(r)
  return r
end

function R.bytes(r)
  local j, worker, flags, tail = r.j, r.worker or '', 0, ''
  if j.plain then flags = PLAIN end
  if r.function_done then flags = flags + RAN end
  if j.plain and r.state == RUNNING then
    tail = (#j.limits > 0 and cmsgpack.pack(j.limits) or '\144') .. '\218' .. struct.pack('>H', #j.task) .. j.task
  elseif j.plain and #j.limits > 0 then
    tail = cmsgpack.pack(j.limits)
  end
  if r.after ~= j.after or r.blocked_on or r.result or r.value or r.error or r.reason or #r.checkpoints > 0 or r.note or r.ups then
    flags = flags + TAIL
    tail = cmsgpack.pack({ r.after ~= j.after and r.after, r.blocked_on or false, r.result or false, r.value or false,
                           r.error or false, r.reason or false, #r.checkpoints > 0 and r.checkpoints, r.note or false, r.ups or false })
  end
  return struct.pack(ROW_FORMAT, r.state, flags, r.version, r.pending, r.failures_allowed or ANY, r.attempt, r.lost, r.reopenings,
    j.keep, j.keep_failed, r.created_at, r.queue_position or NONE, r.return_position or NONE, r.due_at or NONE, r.deadline_at or NONE,
    r.started_at or NONE, r.updated_at, r.ended_at or NONE, r.expires_at or NONE, j.rank, #worker, #j.queue)
    .. worker .. j.queue .. tail
end
