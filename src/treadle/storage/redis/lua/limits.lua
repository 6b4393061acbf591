-- ARGV: now, then for each change: do, name, rule as msgpack, why, until; or "copy", name, number, four facts
-- (facts.lua). If something changed, or without arguments: queues all blocked jobs that have room, and publishes all
-- queues. Returns the facts of the changed limits.
do
  local mark = away()
  if mark then return mark end
end
slowly()
local anew, at, told = #ARGV == 1, 2, {}
while at <= #ARGV do
  if ARGV[at] == 'copy' then
    anew = F.copy(unpack(ARGV, at + 1, at + 6)) or anew
    at = at + 7
  else
    anew = F.apply(unpack(ARGV, at, at + 4)) or anew
    told[ARGV[at + 1]] = true
    at = at + 5
  end
end
if anew then
  call('HINCRBY', ns .. ':facts:at', '', 1)
  for _, key in ipairs(call('SMEMBERS', ns .. ':asides')) do A.call_in_for(key) end
  for _, queue in ipairs(call('SMEMBERS', ns .. ':lines')) do
    if call('EXISTS', ns .. ':lines:' .. queue) == 1 then B.topics['queue:' .. queue] = true end
  end
  B.finish()
end
local words = {}
for name in pairs(told) do words[#words + 1] = F.told(name) end
return words
