-- Reads the next entries of a sorted set after a spot (score, id), or from its start where the score is nil. Returns
-- { id, score, ... }, and the ids alone.
local function entries_after(list, most, score, id)
  local from = 0
  if score then
    local before, is_there = members_before(list, call('ZCARD', list), score, id)
    from = before + is_there
  end
  local entries, ids = call('ZRANGE', list, from, from + most - 1, 'WITHSCORES'), {}
  for k = 1, #entries, 2 do ids[#ids + 1] = entries[k] end
  return entries, ids
end
