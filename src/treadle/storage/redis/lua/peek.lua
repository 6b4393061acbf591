-- ARGV: now, the claim as msgpack, seconds after which another process may finish a call. Advances due rows and
-- returns { now, '1' if this claim id has jobs here already, '1' if there is an operation to finish, next due time or
-- '', { index of the queue, rank, position, id, ... } }: the first jobs of each queue, up to the limit of the claim.
do
  local mark = away()
  if mark then return mark end
end
local ask = cmsgpack.unpack(ARGV[2])
if call('EXISTS', ns .. ':held:' .. ask.worker) == 1 then return { num(now), '1', '', '', {} } end

local spots = {}
local function look(number, queue, kind)
  local left = ask.limit
  for _, rank in ipairs(call('ZRANGE', ns .. ':lines:' .. queue, 0, -1)) do
    if left <= 0 then break end
    local list = ns .. ':' .. kind .. ':' .. rank .. ':' .. queue
    local found, n = call('ZRANGE', list, 0, left - 1, 'WITHSCORES'), #spots
    for k = 1, #found, 2 do
      spots[n + 1], spots[n + 2], spots[n + 3], spots[n + 4] = number, rank, found[k + 1], found[k]
      n = n + 4
    end
    left = left - #found / 2
  end
end

local function first_score(key)
  return tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
end

local function answer()
  local half = call('EXISTS', ns .. ':leaving') == 1
    or #call('ZRANGEBYSCORE', ns .. ':calls:at', '-inf', num(now - ARGV[3]), 'LIMIT', 0, 1) > 0
  local due, opens = first_score(DUE), first_score(OPENS)
  local moment = due and opens and math.min(due, opens) or due or opens
  return { num(now), '', half and '1' or '', moment and num(moment) or '', spots }
end

-- nothing is due and there are no rules, as is usual in the shards after the first: half the cost of the rest
local calm = (first_score(DUE) or now + 1) > now and (first_score(OPENS) or now + 1) > now
if calm and call('EXISTS', RULES) == 0 then
  if #ask.ids == 0 then
    for number, each in ipairs(ask.queues) do look(number, each[1], 'line') end
  end
  return answer()
end
slowly()
T.advance_due()
A.write()
B.finish()
if #ask.ids == 0 then
  for number, each in ipairs(ask.queues) do
    local shut = A.rule('queue:' .. each[1]) and not A.fits('queue:' .. each[1], 1, false)
    look(number, each[1], shut and 'fast' or 'line')
  end
end
return answer()
