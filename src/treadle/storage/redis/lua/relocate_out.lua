-- ARGV: now, a root, a number for this move.
-- Takes a whole workflow out of this shard, in one step, to be stored in the first one, and sets pointers for its ids.
-- Returns { number, { id, job, row, ... as of `C.told` } }, and the same again while `leaving` has it; {} if the shard
-- has no job of it.
local root = ARGV[2]
local before = call('HGET', ns .. ':leaving', root)
if before then return cmsgpack.unpack(before) end
do
  local mark = away(CLOSING)             -- no workflow changes its shard once jobs may have been moved away
  if mark then return mark end
end
slowly()
local ids = call('SMEMBERS', ns .. ':tree:' .. root)
if call('HEXISTS', JOB, root) == 1 then ids[#ids + 1] = root end
if #ids == 0 then return {} end
table.sort(ids)
B.load(ids)
local made, told, all = {}, C.told(ids), {}
for k, id in ipairs(ids) do
  all[6 * k - 5] = id
  for n = 1, 5 do all[6 * k - 5 + n] = told[5 * k - 5 + n] end
end
for _, id in ipairs(ids) do
  local r = B.get(id)
  r.queue_position, r.blocked_on, r.due_at, r.expires_at, r.ended_at, r.worker = nil, nil, nil, nil, nil, nil
  if r.state < SUCCEEDED then r.state = CANCELLED end
  B.put(r)                               -- removes it from all views and counters
end
B.write()
for k, id in ipairs(ids) do
  B.forget(B.get(id))
  call('DEL', ns .. ':kids:' .. id)
  call('SREM', PARENTS, id)
  made[2 * k - 1], made[2 * k] = id, num(now)
end
B.flush()
many('HSET', LEFT, made, 2)
call('HSET', ns .. ':leaving', root, cmsgpack.pack({ ARGV[3], all }))
return { ARGV[3], all }
