-- A pack has the jobs that ended in one call and have the same expires_at (settle.lua). Its name consists of both
-- times. `packs` maps it to the ids; `packs:old` and `packs:ended` list the names as OLD and ENDED list single ids. A
-- change of a row leaves its pack unchanged: an entry counts only while the row has the pack's time. Otherwise OLD or
-- ENDED list the id of the row itself, if it has ended.
local PACKS = ns .. ':packs'
local PACKS_OLD, PACKS_ENDED = PACKS .. ':old', PACKS .. ':ended'

-- Merges ids from several lists as into one sorted set: by score and id, each once.
local function new_merge() return { scores = {}, at = {}, n = 0 } end

local function merge_in(merged, score, id)
  local ids_at = merged.at[score]
  if not ids_at then
    ids_at = {}
    merged.at[score], merged.scores[#merged.scores + 1] = ids_at, score
  end
  if not ids_at[id] then
    ids_at[#ids_at + 1], ids_at[id] = id, true
    merged.n = merged.n + 1
  end
end

-- Returns the ids and the scores of the first `most` entries.
local function take_first(merged, most)
  local ids, scores, n = {}, {}, 0
  table.sort(merged.scores)
  for _, score in ipairs(merged.scores) do
    local ids_at = merged.at[score]
    table.sort(ids_at, earlier)
    for _, id in ipairs(ids_at) do
      if n == most then return ids, scores end
      n = n + 1
      ids[n], scores[n] = id, score
    end
  end
  return ids, scores
end

-- Read packs from `index` on while `wanted(score)`, and pass each to `take(score, ids, name)`.
local function read_packs(list, index, wanted, take)
  while true do
    local entry = call('ZRANGE', list, index, index, 'WITHSCORES')
    local name, score = entry[1], tonumber(entry[2])
    if not name or not wanted(score) then return end
    take(score, cmsgpack.unpack(call('HGET', PACKS, name)), name)
    index = index + 1
  end
end
