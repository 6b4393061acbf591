-- ARGV: now, worker, gone ('1'), presence, lease, the renewals as msgpack: { id, version, checkpoints, note, reach },
-- ... Returns the ids whose lease is lost.
local stopped = stopped_by_move(CLOSING)
if stopped then return stopped end
define_shared()
local lost_ids, lease, WORKERS = {}, tonumber(ARGV[5]), ns .. ':workers'
write_without_memory()
local CORRECTED_MOST = 10000                  -- rows corrected when the clock was set back: 0.1 s of the server's time

-- Correct what a clock ahead of `now` wrote: starts count as now, and rows keep the time they had left.
local function correct_clock()
  local workers = call('HGETALL', WORKERS)
  for k = 1, #workers, 2 do
    if struct.unpack('>d', workers[k + 1]) > now then
      call('HSET', WORKERS, workers[k], NOW_BYTES .. sub(workers[k + 1], 9))
    end
  end
  for _, key in ipairs(call('HKEYS', ns .. ':spent')) do
    local starts, sum = ns .. ':starts:' .. key, 0
    local ahead = call('ZRANGEBYSCORE', starts, num(now), '+inf')
    for _, entry in ipairs(ahead) do sum = sum + tonumber(string.match(entry, '^%d+')) end
    if #ahead > 0 then
      call('ZREMRANGEBYSCORE', starts, num(now), '+inf')
      call('ZADD', starts, num(now), sum .. ':' .. num(now))
    end
  end
  local buckets = call('HGETALL', ns .. ':bucket')
  for k = 1, #buckets, 2 do
    local tokens, refilled_at, since = Admission.unpack_bucket(buckets[k + 1])
    if refilled_at > now then
      call('HSET', ns .. ':bucket', buckets[k], struct.pack('>ddd', tokens, now, math.min(since, now)))
    end
  end
  for _, key in ipairs(call('ZRANGEBYSCORE', OPENS, '(' .. num(now), '+inf')) do call('ZADD', OPENS, num(now), key) end
  local ids = call('ZRANGEBYSCORE', DUE, '(' .. num(now), '+inf', 'LIMIT', 0, CORRECTED_MOST)
  Unit.load(ids)
  for _, id in ipairs(ids) do
    local row = Unit.get(id)
    if row and (row.state == READY or row.state == RUNNING) and not row.queue_position and not row.blocked_on
      and row.updated_at > now and not (row.job.run_at and not row.started_at) then
      row.due_at, row.updated_at = math.max(now, row.due_at - (row.updated_at - now)), now
      Unit.put(row)
    end
  end
end

local own_presence, latest_time = call('HGET', WORKERS, ARGV[2]), 0
-- A new worker checks the heartbeats of all, because a machine is often restarted when its clock is corrected.
for _, presence in ipairs(own_presence and { own_presence } or call('HVALS', WORKERS)) do
  latest_time = math.max(latest_time, (struct.unpack('>d', presence)))
end
if latest_time > now + 1 then correct_clock() end
if ARGV[3] == '1' then
  call('HDEL', WORKERS, ARGV[2])
else
  call('HSET', WORKERS, ARGV[2], NOW_BYTES .. ARGV[4])
end

local function may_go_on(row)
  for _, limit in ipairs({ { 'queue:' .. row.job.queue, 1 }, unpack(row.job.limits) }) do
    local rule = Admission.rule(limit[1])
    local keeps_slots = rule and rule.hold == 'ended' and row.started_at
    if rule and not keeps_slots and not Admission.slots_fit(rule, limit[1], limit[2]) then return false end
  end
  return true
end

local function renew_lease(renewal)
  local row = Unit.get(renewal[1])
  if not row or not Endings.is_within(renewal[5], row.job.queue) or row.version ~= renewal[2] or not row.worker
    or (row.state ~= RUNNING and row.state ~= READY) then
    return false
  end
  if row.state == READY and not row.function_done and not may_go_on(row) then return false end
  if renewal[4] and renewal[4] ~= row.note then
    Unit.topics['job:' .. row.id] = true
    row.note = renewal[4]
  end
  local seconds = row.job.lease
  if not seconds or seconds == 0 or seconds > lease then seconds = lease end
  Row.remember(row, renewal[3])
  row.state, row.queue_position, row.blocked_on, row.due_at, row.updated_at = RUNNING, nil, nil, now + seconds, now
  Unit.put(row)
  return true
end

local renewals = cmsgpack.unpack(ARGV[6])
local ids = {}
for k, renewal in ipairs(renewals) do ids[k] = renewal[1] end
Unit.load(ids)
for _, renewal in ipairs(renewals) do
  if not renew_lease(renewal) then lost_ids[#lost_ids + 1] = renewal[1] end
end
Due.advance_due()
Admission.write()
Unit.finish()
return lost_ids
