-- A job as bytes, and as a table. See rows.py: both lay them out alike.
--
-- job: flags rank keep keep_failed, lengths of task queue head | task queue head | the NewJob, opaque | created_at
-- row: state flags version pending slack attempt lost round, moments, rank, lengths of worker queue | worker queue tail
-- A job without a row is plain and stands in line since it was made. A plain one asks for nothing but its turn, a lane and
-- limits; behind its queue the row has the limits as msgpack instead of a tail, so that its ending need not read the job.
local ROW_FORMAT = '>BBI4i4i4I4I4I4dddddddddddhHH'
local ROW_SIZE = 120
R = {}
local NOTHING = {}                       -- never written to

local function maybe(x) if x ~= NONE then return x end end
R.maybe = maybe
local function told(x) if x then return x end end

-- what the views know of it. The fields stand in the constructor so that the table is made in its size.
local function sight(r)
  local v = r.v
  if v and v.known then
    v.place, v.joined_at, v.parked, v.state, v.worker = r.place, r.joined_at, r.parked, r.state, r.worker
    v.due_at, v.started_at, v.ran, v.after = r.due_at, r.started_at, r.ran, r.after
    v.ended_at, v.expires_at = r.ended_at, r.expires_at
  else
    r.v = { known = true, place = r.place, joined_at = r.joined_at, parked = r.parked, state = r.state, worker = r.worker,
            due_at = r.due_at, started_at = r.started_at, ran = r.ran, after = r.after, ended_at = r.ended_at,
            expires_at = r.expires_at }
  end
end

function R.job(id, body)
  local flags, rank, keep, keep_failed, tl, ql, hl = struct.unpack('>BhddHHI4', body)
  local at = 28 + tl + ql
  local j = hl > 0 and cmsgpack.unpack(sub(body, at, at + hl - 1)) or {}
  j.plain, j.rank, j.keep, j.keep_failed = flags == PLAIN, rank, keep, keep_failed
  j.id, j.task, j.queue = id, sub(body, 28, 27 + tl), sub(body, 28 + tl, at - 1)
  if j.slack == nil then j.slack = 0 elseif j.slack == false then j.slack = nil end
  j.after, j.limits = j.after or NOTHING, priced(j.limits or NOTHING)
  return j
end

-- the NewJob itself; `stored`: the moment it was made follows
function R.words(body, stored)
  local tl, ql, hl = struct.unpack('>HHI4', body, 20)
  return cmsgpack.unpack(sub(body, 28 + tl + ql + hl, stored and -9 or -1))
end

-- as it stands when it has just been asked for
function R.fresh(id, j, made)
  return { id = id, j = j, state = WAITING, version = 0, after = j.after, pending = 0, slack = j.slack, ran = j.ran or false,
           attempt = 0, lost = 0, round = 0, memo = NOTHING, created_at = made, updated_at = made, v = NOTHING,
           place = nil, joined_at = nil, due_at = nil, deadline_at = nil, worker = nil, started_at = nil }
end

function R.read(id, body, raw)
  local j, made = R.job(id, body), struct.unpack('>d', body, #body - 7)
  if not raw then
    local r = R.fresh(id, j, made)
    r.state, r.place, r.joined_at = READY, made, made
    sight(r)
    return r
  end
  local state, flags, version, pending, slack, attempt, lost, round, _, _, created_at, place, joined_at, due_at,
    deadline_at, started_at, updated_at, ended_at, expires_at, _, wl, ql = struct.unpack(ROW_FORMAT, raw)
  local r = {
    id = id, j = j, memo = NOTHING, after = j.after, state = state, version = version, pending = pending,
    slack = slack ~= ANY and slack or nil, attempt = attempt, lost = lost, round = round, created_at = created_at,
    place = maybe(place), joined_at = maybe(joined_at), due_at = maybe(due_at), deadline_at = maybe(deadline_at),
    started_at = maybe(started_at), updated_at = updated_at, ended_at = maybe(ended_at), expires_at = maybe(expires_at),
    worker = wl > 0 and sub(raw, ROW_SIZE + 1, ROW_SIZE + wl) or nil, ran = math.floor(flags / RAN) % 2 == 1,
    parked = nil, result = nil, error = nil, reason = nil, v = nil,
  }
  if flags >= TAIL then
    local t = cmsgpack.unpack(sub(raw, ROW_SIZE + wl + ql + 1))
    r.after, r.parked = t[1] or j.after, told(t[2])
    r.result, r.value, r.error, r.reason = told(t[3]), told(t[4]), told(t[5]), told(t[6])
    r.memo, r.note, r.ups = t[7] or NOTHING, told(t[8]), told(t[9])
  end
  sight(r)
  return r
end

function R.bytes(r)
  local j, worker, flags, tail = r.j, r.worker or '', 0, ''
  if j.plain then flags = PLAIN end
  if r.ran then flags = flags + RAN end
  if j.plain and #j.limits > 0 then tail = cmsgpack.pack(j.limits) end
  if r.after ~= j.after or r.parked or r.result or r.value or r.error or r.reason or #r.memo > 0 or r.note or r.ups then
    flags = flags + TAIL
    tail = cmsgpack.pack({ r.after ~= j.after and r.after, r.parked or false, r.result or false, r.value or false,
                           r.error or false, r.reason or false, #r.memo > 0 and r.memo, r.note or false, r.ups or false })
  end
  return struct.pack(ROW_FORMAT, r.state, flags, r.version, r.pending, r.slack or ANY, r.attempt, r.lost, r.round,
    j.keep, j.keep_failed, r.created_at, r.place or NONE, r.joined_at or NONE, r.due_at or NONE, r.deadline_at or NONE,
    r.started_at or NONE, r.updated_at, r.ended_at or NONE, r.expires_at or NONE, j.rank, #worker, #j.queue)
    .. worker .. j.queue .. tail
end
