-- What ended in one call and is kept until one moment is a pack (settle.lua). `packs` has its ids by its name, which is both
-- moments; `packs:old` and `packs:ended` list the names as OLD and ENDED do single ids. A pack is never corrected: what it
-- says of an id holds as long as the row says the same, and else the row stands alone in those lists, if it belongs there.
local PACKS = ns .. ':packs'
local PACKS_OLD, PACKS_ENDED = PACKS .. ':old', PACKS .. ':ended'

-- Ids by score and id, each once, as if all stood in one sorted set. Those of one score may come from anywhere.
local function gathered() return { scores = {}, at = {}, n = 0 } end

local function gather(all, score, id)
  local there = all.at[score]
  if not there then
    there = {}
    all.at[score], all.scores[#all.scores + 1] = there, score
  end
  if not there[id] then
    there[#there + 1], there[id] = id, true
    all.n = all.n + 1
  end
end

-- -> ids, scores: the first so many
local function first_of(all, most)
  local ids, scores, n = {}, {}, 0
  table.sort(all.scores)
  for _, score in ipairs(all.scores) do
    local there = all.at[score]
    table.sort(there, earlier)
    for _, id in ipairs(there) do
      if n == most then return ids, scores end
      n = n + 1
      ids[n], scores[n] = id, score
    end
  end
  return ids, scores
end

-- Packs from the so-many-th on, one after the other, while `wanted(score)`: each is gathered by `take(score, ids, name)`.
local function unpacked(list, from, wanted, take)
  while true do
    local found = call('ZRANGE', list, from, from, 'WITHSCORES')
    local name, score = found[1], tonumber(found[2])
    if not name or not wanted(score) then return end
    take(score, cmsgpack.unpack(call('HGET', PACKS, name)), name)
    from = from + 1
  end
end
