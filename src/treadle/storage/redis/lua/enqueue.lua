-- ARGV: now, 'plain', then groups: queue, rank, n, n times id body    -- all plain, no id twice
--    or now, 'any', then id body ...
-- Answers { now, { number in the call, body, row, ... } } of those that were there already; or, for 'any',
-- { now, { body or '' if it is new, row, ... } } of all; or { '', what is wrong, ... } and nothing is stored.
do
  local mark = away()
  if mark then return mark end
end
if ARGV[2] == 'plain' then
  local known, at, number, width = {}, 3, 0, #ARGV
  local topics, seen = {}, {}
  while at < width do
    local queue, rank, n = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
    local ids, bodies, score = {}, {}, num(now)
    for k = 1, n do ids[k], bodies[k] = ARGV[at + 1 + 2 * k], ARGV[at + 2 + 2 * k] end
    local have, set, line, made, m = fetch(JOB, ids), {}, {}, {}, 0
    for k = 1, n do
      if have[k] then
        known[#known + 1] = number + k
        known[#known + 1] = have[k]
        known[#known + 1] = call('HGET', ROW, ids[k]) or ''
      else
        set[m + 1], set[m + 2] = ids[k], bodies[k] .. NOW_BYTES
        line[m + 1], line[m + 2] = score, ids[k]
        m = m + 2
      end
    end
    if m > 0 then
      many('HSET', JOB, set, 2)
      many('ZADD', ns .. ':line:' .. rank .. ':' .. queue, line, 2)
      many('ZADD', MADE, line, 2)
      call('ZADD', ns .. ':lines:' .. queue, -rank, rank)
      call('SADD', ns .. ':lines', queue)
      if not seen[queue] then
        seen[queue] = true
        topics[#topics + 1] = 'queue:' .. queue
      end
    end
    number, at = number + n, at + 3 + 2 * n
  end
  if #topics > 0 then call('PUBLISH', ns .. ':say', cmsgpack.pack(topics)) end
  return { num(now), known }
end
--- slowly
local jobs = {}
for at = 3, #ARGV, 2 do jobs[#jobs + 1] = { ARGV[at], ARGV[at + 1] } end
local answers, wrong, one, other = E.answers(jobs)
if not answers then return { '', wrong, one, other } end
local born, rows = E.store_all(jobs, answers), {}
B.finish()
local ids = {}
for k, new in ipairs(jobs) do ids[k] = answers[new[1]] end
local raws = fetch(ROW, ids)
for k, new in ipairs(jobs) do
  local id = ids[k]
  rows[2 * k - 1] = born[id] and id == new[1] and '' or call('HGET', JOB, id)
  rows[2 * k] = raws[k] or ''
  born[id] = nil                         -- named once more in this call, it is the first one's words
end
return { num(now), rows }
