-- ARGV: now, since, until, how many at most, how many to skip. Returns { span, at, source, data, ... } of the rows
-- whose span overlaps [since - 1 s, until): a second more, because floats are rounded. Changes nothing.
local since, before, most, skipped, rows =
  tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), {}
local spans = call('SMEMBERS', METRICS)
table.sort(spans)
for _, span in ipairs(spans) do
  local list = METRICS .. ':' .. span
  local low, high = '(' .. num(since - span - 1), '(' .. num(before)
  local n = call('ZCOUNT', list, low, high)
  if n <= skipped then
    skipped = skipped - n
  elseif #rows < 4 * most then
    local fields = call('ZRANGEBYSCORE', list, low, high, 'LIMIT', skipped, most - #rows / 4)
    skipped = 0
    for k, data in ipairs(fetch(list .. ':data', fields)) do
      local span_start, source = string.match(fields[k], '^([^:]*):(.*)$')
      if data then
        local count = #rows
        rows[count + 1], rows[count + 2], rows[count + 3], rows[count + 4] = span, span_start, source, data
      end
    end
  end
end
return rows
