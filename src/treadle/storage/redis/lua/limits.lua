-- ARGV: now, then do, name, rule as msgpack, why, until for each change; "copy", name, number, and four facts: see facts.lua.
-- Without any: all are looked at.   Acts on all who stand aside. Answers what is known of the limits named.
do
  local mark = away()
  if mark then return mark end
end
slowly()
F.adopt()
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
