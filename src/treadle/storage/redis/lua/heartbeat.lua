-- ARGV: now, worker, gone ('1'), presence, lease, the renewals as msgpack: { id, version, checkpoints, note, reach },
-- ... Returns the ids whose lease is lost.
do
  local mark = away(CLOSING)
  if mark then return mark end
end
slowly()
local lost, lease = {}, tonumber(ARGV[5])
make_way()
local BACK_MOST = 10000                  -- rows corrected when the clock was set back: 0.1 s of the server's time

-- Correct what a clock ahead of `now` wrote: starts count as now, and rows keep the time they had left.
local function take_back()
  local workers = call('HGETALL', ns .. ':workers')
  for k = 1, #workers, 2 do
    if struct.unpack('>d', workers[k + 1]) > now then
      call('HSET', ns .. ':workers', workers[k], NOW_BYTES .. sub(workers[k + 1], 9))
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
    local tokens, at = struct.unpack('>dd', buckets[k + 1])
    if at > now then call('HSET', ns .. ':bucket', buckets[k], struct.pack('>dd', tokens, now)) end
  end
  for _, key in ipairs(call('ZRANGEBYSCORE', OPENS, '(' .. num(now), '+inf')) do call('ZADD', OPENS, num(now), key) end
  local ids = call('ZRANGEBYSCORE', DUE, '(' .. num(now), '+inf', 'LIMIT', 0, BACK_MOST)
  B.load(ids)
  for _, id in ipairs(ids) do
    local r = B.get(id)
    if r and (r.state == READY or r.state == RUNNING) and not r.queue_position and not r.blocked_on and r.updated_at > now then
      r.due_at, r.updated_at = math.max(now, r.due_at - (r.updated_at - now)), now
      B.put(r)
    end
  end
end

local WORKERS = ns .. ':workers'
local before, latest = call('HGET', WORKERS, ARGV[2]), 0
-- A new worker checks the heartbeats of all, because a machine is often restarted when its clock is corrected.
for _, words in ipairs(before and { before } or call('HVALS', WORKERS)) do
  latest = math.max(latest, (struct.unpack('>d', words)))
end
if latest > now + 1 then take_back() end
if ARGV[3] == '1' then
  call('HDEL', ns .. ':workers', ARGV[2])
else
  call('HSET', ns .. ':workers', ARGV[2], NOW_BYTES .. ARGV[4])
end

local function fits_again(r)
  local kept = r.started_at ~= nil
  local function fits(key, cost)
    local rule = A.rule(key)
    return not rule or (kept and rule.hold == 'ended') or A.slots_fit(rule, key, cost)
  end
  if not fits('queue:' .. r.j.queue, 1) then return false end
  for _, cost in ipairs(r.j.limits) do
    if not fits(cost[1], cost[2]) then return false end
  end
  return true
end

local function beat(hold)
  local r = B.get(hold[1])
  if not r or not E.within(hold[5], r.j.queue) or r.version ~= hold[2] or not r.worker or (r.state ~= RUNNING and r.state ~= READY) then return false end
  if r.state == READY and not r.function_done and not fits_again(r) then return false end
  local checkpoints, at = {}, {}
  for _, from in ipairs({ r.checkpoints, hold[3] }) do
    for _, pair in ipairs(from) do
      local position = at[pair[1]] or #checkpoints + 1
      checkpoints[position], at[pair[1]] = pair, position
    end
  end
  if hold[4] and hold[4] ~= r.note then
    B.topics['job:' .. r.id] = true
    r.note = hold[4]
  end
  local own = r.j.lease
  if not own or own == 0 or own > lease then own = lease end
  r.checkpoints, r.state, r.queue_position, r.blocked_on, r.due_at, r.updated_at = checkpoints, RUNNING, nil, nil, now + own, now
  B.put(r)
  return true
end

local holds = cmsgpack.unpack(ARGV[6])
local ids = {}
for k, hold in ipairs(holds) do ids[k] = hold[1] end
B.load(ids)
for _, hold in ipairs(holds) do
  if not beat(hold) then lost[#lost + 1] = hold[1] end
end
T.advance_due()
A.write()
B.finish()
return lost
