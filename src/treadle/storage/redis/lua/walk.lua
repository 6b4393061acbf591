-- ARGV: now, index ('made' or 'line:<rank>:<queue>'), '1' for backwards, how many, and the score and id after which to
-- begin ('' for the start). Returns { id, score, job, row or '', ... }: one step along an index. Changes nothing.
local list, backwards, most = ns .. ':' .. ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])
local size = call('ZCARD', list)
local before, at = backwards and size or 0, 0
if ARGV[5] ~= '' then before, at = standing(list, size, tonumber(ARGV[5]), ARGV[6]) end
local found
if backwards then
  found = call('ZREVRANGE', list, size - before, size - before + most - 1, 'WITHSCORES')
else
  found = call('ZRANGE', list, before + at, before + at + most - 1, 'WITHSCORES')
end
local ids, rows = {}, {}
for k = 1, #found, 2 do ids[#ids + 1] = found[k] end
local bodies, raws = fetch(JOB, ids), fetch(ROW, ids)
for k = 1, #ids do
  rows[4 * k - 3], rows[4 * k - 2], rows[4 * k - 1], rows[4 * k] = ids[k], found[2 * k], bodies[k] or '', raws[k] or ''
end
return rows
