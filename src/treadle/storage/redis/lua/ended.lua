-- ARGV: now, how many, and the score and id after which to begin ('' for the start). Like `walk`, in the order of
-- endings: returns { id, score, job or '', row or '', ... }; '' for an obsolete entry of a pack. Changes nothing.
local most, begin, behind = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local all, last, before, at = gathered(), nil, 0, 0
if begin then before, at = standing(ENDED, call('ZCARD', ENDED), begin, behind) end
local alone = call('ZRANGE', ENDED, before + at, before + at + most - 1, 'WITHSCORES')
for k = 1, #alone, 2 do gather(all, tonumber(alone[k + 1]), alone[k]) end
if #alone == 2 * most then last = tonumber(alone[#alone]) end   -- higher scores come in the next step
local enough, moment = all.n + most, nil
local function wanted(score) return (not last or score <= last) and (all.n < enough or score == moment) end
local function take(score, ids)
  for _, id in ipairs(ids) do
    if score ~= begin or earlier(behind, id) then gather(all, score, id) end
  end
  moment = score
end
unpacked(PACKS_ENDED, begin and call('ZCOUNT', PACKS_ENDED, '-inf', '(' .. num(begin)) or 0, wanted, take)
local ids, scores = first_of(all, most)
local bodies, raws, rows = fetch(JOB, ids), fetch(ROW, ids), {}
for k, id in ipairs(ids) do
  local raw = raws[k]
  local is = bodies[k] and raw and byte(raw) >= SUCCEEDED and struct.unpack('>d', raw, 99) == -scores[k]
  rows[4 * k - 3], rows[4 * k - 2], rows[4 * k - 1], rows[4 * k] = id, num(scores[k]), is and bodies[k] or '', is and raw or ''
end
return rows
