-- ARGV: now, then limits. Returns for each that has a rate: its name, how much may start now, and the moment at which
-- one job may start, or '' for now. Changes nothing.
slowly()
local told = {}
for k = 2, #ARGV do
  local key = ARGV[k]
  local rule = A.rule(key)
  if rule and rule.rate and rule.rate > 0 then
    local opens = A.opens_at(rule, key, 1)
    told[#told + 1], told[#told + 2], told[#told + 3] = key, num(A.level(rule, key)), opens and num(opens) or ''
  end
end
return told
