-- ARGV: now, since, until, how many at most, how many to skip. Returns { span, at, source, data, ... } of the rows whose
-- span overlaps [since - 1 s, until): floats round. Changes nothing.
local since, till, most, past, told = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), {}
local spans = call('SMEMBERS', METRICS)
table.sort(spans)
for _, span in ipairs(spans) do
  local list = METRICS .. ':' .. span
  local low, high = '(' .. num(since - span - 1), '(' .. num(till)
  local n = call('ZCOUNT', list, low, high)
  if n <= past then
    past = past - n
  elseif #told < 4 * most then
    local fields = call('ZRANGEBYSCORE', list, low, high, 'LIMIT', past, most - #told / 4)
    past = 0
    for k, data in ipairs(fetch(list .. ':data', fields)) do
      local at, source = string.match(fields[k], '^([^:]*):(.*)$')
      if data then
        local m = #told
        told[m + 1], told[m + 2], told[m + 3], told[m + 4] = span, at, source, data
      end
    end
  end
end
return told
