-- ARGV: now, a root, a number for this move.
-- Takes a whole workflow out of this shard, in one step, to be stored in the first one, and sets pointers for its ids.
-- Returns { number, { id, the values of `Transfer.read`, ... } }, and the same again while `leaving` has it; {} if the
-- shard has no job of it.
local root = ARGV[2]
local before = call('HGET', ns .. ':leaving', root)
if before then return cmsgpack.unpack(before) end
local stopped = stopped_by_move(CLOSING)          -- no workflow changes its shard once a move may have taken jobs away
if stopped then return stopped end
define_shared()
local ids = call('SMEMBERS', ns .. ':tree:' .. root)
if call('HEXISTS', JOB, root) == 1 then ids[#ids + 1] = root end
if #ids == 0 then return {} end
table.sort(ids)
Unit.load(ids)
local pointers, values, all = {}, Transfer.read(ids), {}
for k, id in ipairs(ids) do
  all[6 * k - 5] = id
  for n = 1, 5 do all[6 * k - 5 + n] = values[5 * k - 5 + n] end
end
for _, id in ipairs(ids) do
  local row = Unit.get(id)
  row.queue_position, row.blocked_on, row.due_at, row.expires_at, row.ended_at, row.worker =
    nil, nil, nil, nil, nil, nil
  if row.state < SUCCEEDED then row.state = CANCELLED end
  Unit.put(row)                               -- removes it from all views and counters
end
Unit.write()
for k, id in ipairs(ids) do
  Unit.delete(Unit.get(id))
  call('DEL', ns .. ':kids:' .. id)
  call('SREM', PARENTS, id)
  pointers[2 * k - 1], pointers[2 * k] = id, num(now)
end
Unit.flush()
call_many('HSET', POINTERS, pointers, 2)
call('HSET', ns .. ':leaving', root, cmsgpack.pack({ ARGV[3], all }))
return { ARGV[3], all }
