-- ARGV: now, 'plain', call, until, then groups: queue, rank, n, n times id body    -- all plain, no id twice
--    or now, 'any', call, until, then id body ...
-- call: '', or of which call over several shards this is a part; it is stored once, and not after `until`.
-- until: 'here' where it is known to belong here.
-- Answers { now, { number in the call, body, row, ... } } of those that were there already; or, for 'any',
-- { now, { body or '' if it is new, row, ... } } of all; or { '', what is wrong, ... } and nothing is stored;
-- { '\1' }: it belongs into the first shard; { '\2' }: it comes too late.
local done = false
if ARGV[3] ~= '' then
  if now > tonumber(ARGV[4]) then return { '\2' } end
  done = call('ZSCORE', ns .. ':done', ARGV[3]) and true
else
  local mark = away()
  if mark then return mark end
end
local asks = KEYS[3] and not done and ARGV[4] ~= 'here' and (SPREAD or ARGV[3] == '')
if ARGV[2] == 'plain' then
  local known, at, number, width = {}, 5, 0, #ARGV
  local topics, seen = {}, {}
  if asks then
    local ids, k = {}, 5
    while k < width do
      for n = 1, tonumber(ARGV[k + 2]) do ids[#ids + 1] = ARGV[k + 1 + 2 * n] end
      k = k + 3 + 2 * ARGV[k + 2]
    end
    if has_left(ids) then return { '\1' } end
  end
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
      elseif not done then
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
  if ARGV[3] ~= '' and not done then call('ZADD', ns .. ':done', '+inf', ARGV[3]) end
  return { num(now), known }
end
--- slowly
local jobs = {}
for at = 5, #ARGV, 2 do jobs[#jobs + 1] = { ARGV[at], ARGV[at + 1] } end
if done then
  local ids, rows = {}, {}
  for k, new in ipairs(jobs) do ids[k] = new[1] end
  local bodies, raws = fetch(JOB, ids), fetch(ROW, ids)
  for k = 1, #ids do rows[2 * k - 1], rows[2 * k] = bodies[k] or '', raws[k] or '' end
  return { num(now), rows }
elseif asks then
  local ids = {}
  for _, new in ipairs(jobs) do
    ids[#ids + 1] = new[1]
    ids[#ids + 1] = R.job(new[1], new[2]).root
  end
  if has_left(ids) then return { '\1' } end
end
local answers, wrong, one, other = E.answers(jobs)
if not answers then return { '', wrong, one, other } end
local born, rows = E.store_all(jobs, answers), {}
if ARGV[3] ~= '' then call('ZADD', ns .. ':done', '+inf', ARGV[3]) end
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
