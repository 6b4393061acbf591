-- A pack has the jobs that ended in one call and have the same expires_at (settle.lua). Its name is both times. `packs`
-- maps it to the ids; `packs:old` and `packs:ended` list the names as OLD and ENDED list single ids. A change of a row
-- leaves its pack unchanged: an entry counts only while the row has the pack's time. Otherwise the row is in OLD or
-- ENDED, if it belongs there.
local PACKS = ns .. ':packs'
local PACKS_OLD, PACKS_ENDED = PACKS .. ':old', PACKS .. ':ended'

-- Merges ids from several lists as into one sorted set: by score and id, each once.
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

-- -> ids, scores: the first `most`
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

-- Read packs from index `from` on while `wanted(score)`, and pass each to `take(score, ids, name)`.
local function unpacked(list, from, wanted, take)
  while true do
    local found = call('ZRANGE', list, from, from, 'WITHSCORES')
    local name, score = found[1], tonumber(found[2])
    if not name or not wanted(score) then return end
    take(score, cmsgpack.unpack(call('HGET', PACKS, name)), name)
    from = from + 1
  end
end
