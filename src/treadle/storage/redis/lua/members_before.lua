-- Finds a spot (score, id) in a sorted set that may not contain it. Returns the number of members before the spot, and
-- 1 if a member is at it.
local function members_before(list, size, score, id)
  local first, last = 0, size
  while first < last do
    local middle = math.floor((first + last) / 2)
    local entry = call('ZRANGE', list, middle, middle, 'WITHSCORES')
    local score_there = tonumber(entry[2])
    if score_there < score or (score_there == score and earlier(entry[1], id)) then
      first = middle + 1
    else
      last = middle
    end
  end
  local entry = call('ZRANGE', list, first, first, 'WITHSCORES')
  return first, entry[1] == id and tonumber(entry[2]) == score and 1 or 0
end
