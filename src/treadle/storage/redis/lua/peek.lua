-- ARGV: now, the claim as msgpack, seconds after which another process may finish a call. Advances due rows and
-- returns { now, '1' if this claim id has jobs here already, '1' if there is an operation to finish, next due time or
-- '', { index of the queue, rank, position, id, ... } }: the first jobs of each queue, up to the limit of the claim.
local stopped = stopped_by_move()
if stopped then return stopped end
local request = cmsgpack.unpack(ARGV[2])
if call('EXISTS', ns .. ':held:' .. request.worker) == 1 then return { num(now), '1', '', '', {} } end

local spots = {}
local function add_heads(number, queue, kind)
  local room = request.limit
  for _, rank in ipairs(call('ZRANGE', ns .. ':lines:' .. queue, 0, -1)) do
    if room <= 0 then break end
    local list = ns .. ':' .. kind .. ':' .. rank .. ':' .. queue
    local entries, n = call('ZRANGE', list, 0, room - 1, 'WITHSCORES'), #spots
    for k = 1, #entries, 2 do
      spots[n + 1], spots[n + 2], spots[n + 3], spots[n + 4] = number, rank, entries[k + 1], entries[k]
      n = n + 4
    end
    room = room - #entries / 2
  end
end

local function first_score(key)
  return tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
end

local function answer()
  local unfinished = call('EXISTS', ns .. ':leaving') == 1
    or #call('ZRANGEBYSCORE', ns .. ':calls:at', '-inf', num(now - ARGV[3]), 'LIMIT', 0, 1) > 0
  local due, opens = first_score(DUE), first_score(OPENS)
  local moment = due and opens and math.min(due, opens) or due or opens
  return { num(now), '', unfinished and '1' or '', moment and num(moment) or '', spots }
end

-- The fast path, usual in the shards after the first: nothing is due and there are no rules. Then a peek costs half.
local calm = (first_score(DUE) or now + 1) > now and (first_score(OPENS) or now + 1) > now
if calm and call('EXISTS', RULES) == 0 then
  if #request.ids == 0 then
    for number, queue_share in ipairs(request.queues) do add_heads(number, queue_share[1], 'line') end
  end
  return answer()
end
define_shared()
Due.advance_due()
Admission.write()
Unit.finish()
if #request.ids == 0 then
  for number, queue_share in ipairs(request.queues) do
    local is_closed = Admission.rule('queue:' .. queue_share[1])
      and not Admission.fits('queue:' .. queue_share[1], 1, false)
    add_heads(number, queue_share[1], is_closed and 'fast' or 'line')
  end
end
return answer()
