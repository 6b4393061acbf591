-- ARGV: now, then name, rule as msgpack or '' to remove it.   Acts on all who stand aside.
do
  local mark = away()
  if mark then return mark end
end
slowly()
for at = 2, #ARGV, 2 do
  if ARGV[at + 1] == '' then call('HDEL', RULES, ARGV[at]) else call('HSET', RULES, ARGV[at], ARGV[at + 1]) end
end
for _, key in ipairs(call('SMEMBERS', ns .. ':asides')) do A.call_in_for(key) end
for _, queue in ipairs(call('SMEMBERS', ns .. ':lines')) do
  if call('EXISTS', ns .. ':lines:' .. queue) == 1 then B.topics['queue:' .. queue] = true end
end
B.finish()
return 1
