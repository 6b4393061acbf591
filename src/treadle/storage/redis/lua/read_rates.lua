-- ARGV: now, then limits. Returns for each that has a rate: its name, how much may start now, and the moment at which
-- one job may start, or '' for now; and the moment for the first job that it blocks, or ''. Changes nothing.
define_shared()
local rates = {}
for k = 2, #ARGV do
  local key = ARGV[k]
  local rule = Admission.rule(key)
  if rule and rule.rate and rule.rate > 0 then
    local opens = Admission.opens_at(rule, key, 1)
    local n = #rates
    rates[n + 1], rates[n + 2], rates[n + 3], rates[n + 4] =
      key, num(Admission.rate_level(rule, key)), opens and num(opens) or '', call('ZSCORE', OPENS, key) or ''
  end
end
return rates
