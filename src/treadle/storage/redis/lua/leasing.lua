-- The per-row path of a claim, like storage/machine/leasing.py: admits jobs with limits, leases rows, and claims jobs
-- by id.
Admission.rules_exist, Leasing = has_rules, {}

local turn = {}                        -- one table that is reused for all jobs
local function turn_of(id, rank, position)
  turn.id, turn.rank, turn.queue_position = id, rank, position
  return turn
end

-- Returns when the rate of one of the claimed queues admits its next job.
function Leasing.next_start()
  local queues, moment = {}, nil
  for _, queue_share in ipairs(request.queues) do queues[queue_share[1]] = true end
  if #request.ids > 0 then
    queues = {}
    Unit.load(request.ids)
    for _, id in ipairs(request.ids) do
      local row = Unit.get(id)
      if row and Endings.is_within(request.reach, row.job.queue) then queues[row.job.queue] = true end
    end
  end
  for queue in pairs(queues) do
    local key = 'queue:' .. queue
    local rule = Admission.rule(key)
    if rule and rule.rate and call('EXISTS', ns .. ':lines:' .. queue) == 1 then
      moment = earliest(moment, Admission.opens_at(rule, key, 1))
    end
  end
  return moment
end

-- Check the limit of the job's queue, then the job's own limits. If one of its own is shut, or a costly job before
-- it waits for that limit, block the job.
function Leasing.admit(row)
  if row.function_done then return true end
  local job, keeps_slots, closed = row.job, row.started_at ~= nil, nil
  if not Admission.fits('queue:' .. job.queue, 1, keeps_slots) then return false end
  for _, limit in ipairs(job.limits) do
    if not Admission.fits(limit[1], limit[2], keeps_slots) then closed = limit[1] break end
  end
  if not closed and #job.limits > 0 and Admission.any_blocked() then
    closed = Admission.held_back_by(job.limits, keeps_slots, job.queue, turn_of(row.id, job.rank, row.queue_position))
  end
  if not closed then
    Admission.record_start('queue:' .. job.queue, 1)
    for _, limit in ipairs(job.limits) do Admission.record_start(limit[1], limit[2]) end
    return true
  end
  local previous = row.blocked_on
  row.queue_position, row.blocked_on, row.due_at = nil, closed, row.deadline_at
  Unit.put(row)
  Admission.note_opening(closed)
  blocked_count = blocked_count + 1
  if previous and previous ~= closed then Admission.unblock_limit(previous) end
  return false
end

function Leasing.lease(row, body)
  row.version, row.state, row.queue_position, row.blocked_on, row.worker =
    row.version + 1, RUNNING, nil, nil, request.worker
  local own_lease = row.job.lease
  if own_lease == 0 then own_lease = nil end
  row.due_at, row.started_at, row.updated_at = now + (own_lease or lease_of(row.job.task)), now, now
  Unit.put(row)
  if row.job.started and not Endings.keeps_key(row) then Endings.drop_key(row) end
  n = n + 1
  bodies[n], rows[n] = body or false, row
  if room[row.job.task] then
    room[row.job.task] = room[row.job.task] - 1
    if room[row.job.task] == 0 then update_room() end
  end
end

function Leasing.admit_plain(limits, queue, rank, id, body, raw)
  for k = 1, #limits do
    if not Admission.fits(limits[k][1], limits[k][2], false) then return false end
  end
  if #limits > 0 and Admission.any_blocked() then
    local position = raw and struct.unpack('>d', raw, 51) or struct.unpack('>d', body, #body - 7)
    if Admission.held_back_by(limits, false, queue, turn_of(id, tonumber(rank), position)) then return false end
  end
  for k = 1, #limits do
    Admission.record_start(limits[k][1], limits[k][2])
    count(limits[k][1], limits[k][2])
  end
  return true
end

-- Returns the number of members of a list up to and including a spot.
function Leasing.offset_after(list, score, id)
  local added = call('ZADD', list, 'NX', num(score), id)
  local rank = call('ZRANK', list, id)
  if added == 1 then
    call('ZREM', list, id)
    return rank
  end
  return rank + 1
end

-- Claim these jobs and no others, in queue order.
function Leasing.claim_ids(ids)
  Unit.load(ids)
  local queues, rows_by_queue, seen = {}, {}, {}
  for _, id in ipairs(ids) do
    local row = Unit.get(id)
    if row and Endings.is_within(request.reach, row.job.queue) and not seen[id] then
      seen[id] = true
      local queue = row.job.queue
      if not rows_by_queue[queue] then
        rows_by_queue[queue] = {}
        queues[#queues + 1] = queue
      end
      if row.queue_position then table.insert(rows_by_queue[queue], row) end
    end
  end
  for _, queue in ipairs(queues) do
    table.sort(rows_by_queue[queue], function(a, b)
      if a.job.rank ~= b.job.rank then return a.job.rank > b.job.rank end
      if a.queue_position ~= b.queue_position then return a.queue_position < b.queue_position end
      return earlier(a.id, b.id)
    end)
    for _, row in ipairs(rows_by_queue[queue]) do
      if n < limit and row.queue_position and wanted(row.id, row.job.task) and Leasing.admit(row) then
        Leasing.lease(row)
      end
    end
  end
end
