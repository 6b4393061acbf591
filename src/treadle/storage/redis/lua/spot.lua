-- Finds a spot (score, id) in a sorted set that may not contain it. Returns the number of members before the spot, and
-- 1 if a member is at it.
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
