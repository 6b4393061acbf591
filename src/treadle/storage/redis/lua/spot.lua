-- Where a spot (score, id) is in a sorted set, whether or not somebody stands there: how many stand before it, and at it.
local function standing(list, size, score, id)
  local low, high = 0, size
  while low < high do
    local mid = math.floor((low + high) / 2)
    local found = call('ZRANGE', list, mid, mid, 'WITHSCORES')
    local at = tonumber(found[2])
    if at < score or (at == score and earlier(found[1], id)) then low = mid + 1 else high = mid end
  end
  local found = call('ZRANGE', list, low, low, 'WITHSCORES')
  return low, found[1] == id and tonumber(found[2]) == score and 1 or 0
end
