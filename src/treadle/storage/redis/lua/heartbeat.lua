-- ARGV: now, worker, gone ('1'), presence, lease, the holds as msgpack: { id, version, memo, note }, ...
-- Answers the ids that are held no longer.
do
  local mark = away(CLOSING)
  if mark then return mark end
end
slowly()
local lost, lease = {}, tonumber(ARGV[5])
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
  if not r or r.version ~= hold[2] or not r.worker or (r.state ~= RUNNING and r.state ~= READY) then return false end
  if r.state == READY and not r.ran and not fits_again(r) then return false end
  local memo, at = {}, {}
  for _, from in ipairs({ r.memo, hold[3] }) do
    for _, pair in ipairs(from) do
      local place = at[pair[1]] or #memo + 1
      memo[place], at[pair[1]] = pair, place
    end
  end
  if hold[4] and hold[4] ~= r.note then
    B.topics['job:' .. r.id] = true
    r.note = hold[4]
  end
  local own = r.j.lease
  if own == 0 then own = nil end
  r.memo, r.state, r.place, r.parked, r.due_at, r.updated_at = memo, RUNNING, nil, nil, now + (own or lease), now
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
T.tend()
A.write()
B.finish()
return lost
