-- ARGV: now, how many, the score and id after which to begin ('' for the start), '1' for all checkpoints. Like
-- read_page.lua, in the order of endings: returns { id, score, job or '', row or '', ... }; '' for an obsolete entry of
-- a pack. Changes nothing.
local most, from_score, from_id = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local merged, last, before, is_there = new_merge(), nil, 0, 0
if from_score then before, is_there = members_before(ENDED, call('ZCARD', ENDED), from_score, from_id) end
local single = call('ZRANGE', ENDED, before + is_there, before + is_there + most - 1, 'WITHSCORES')
for k = 1, #single, 2 do merge_in(merged, tonumber(single[k + 1]), single[k]) end
if #single == 2 * most then last = tonumber(single[#single]) end   -- higher scores come in the next step
local most_read, last_score = merged.n + most, nil
local function wanted(score) return (not last or score <= last) and (merged.n < most_read or score == last_score) end
local function take(score, ids)
  for _, id in ipairs(ids) do
    if score ~= from_score or earlier(from_id, id) then merge_in(merged, score, id) end
  end
  last_score = score
end
read_packs(PACKS_ENDED, from_score and call('ZCOUNT', PACKS_ENDED, '-inf', '(' .. num(from_score)) or 0, wanted, take)
local ids, scores = take_first(merged, most)
local bodies, raws, rows = fetch(JOB, ids), fetch(ROW, ids), {}
for k, id in ipairs(ids) do
  local raw = raws[k]
  local is_current = bodies[k] and raw and byte(raw) >= SUCCEEDED and struct.unpack('>d', raw, 99) == -scores[k]
  rows[4 * k - 3], rows[4 * k - 2], rows[4 * k - 1], rows[4 * k] =
    id, num(scores[k]), is_current and bodies[k] or '', is_current and listed(id, raw, ARGV[5] == '1') or ''
end
return rows
