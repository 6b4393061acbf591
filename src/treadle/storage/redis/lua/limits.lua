-- ARGV: now, then for each change: do, name, rule as msgpack, why, until; or "copy", name, number, four facts
-- (limit_facts.lua). If something changed, or without arguments: queues all blocked jobs that have room, and publishes
-- all queues. Returns the facts of the changed limits.
local stopped = stopped_by_move()
if stopped then return stopped end
define_shared()
local is_changed, k, changed_names = #ARGV == 1, 2, {}
while k <= #ARGV do
  if ARGV[k] == 'copy' then
    is_changed = Facts.copy(unpack(ARGV, k + 1, k + 6)) or is_changed
    k = k + 7
  else
    is_changed = Facts.change(unpack(ARGV, k, k + 4)) or is_changed
    changed_names[ARGV[k + 1]] = true
    k = k + 5
  end
end
if is_changed then
  call('HINCRBY', ns .. ':facts:at', '', 1)
  for _, key in ipairs(call('SMEMBERS', ns .. ':asides')) do Admission.unblock_limit(key) end
  for _, queue in ipairs(call('SMEMBERS', ns .. ':lines')) do
    if call('EXISTS', ns .. ':lines:' .. queue) == 1 then Unit.topics['queue:' .. queue] = true end
  end
  Unit.finish()
end
local all_facts = {}
for name in pairs(changed_names) do all_facts[#all_facts + 1] = Facts.of_limit(name) end
return all_facts
