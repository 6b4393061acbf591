-- ARGV: now, '1' for backwards, how many, the score and id after which to begin ('' for the start), '1' for all
-- checkpoints, then the names of sorted sets, such as 'made' or 'line:<rank>:<queue>'.
-- Returns { id, score, job, row or '', ... }: one step along these sets as if they were one. Changes nothing.
local backwards, most, from_score = ARGV[2] == '1', tonumber(ARGV[3]), tonumber(ARGV[4])
local lists, page = {}, #ARGV > 7 and 20 or most

local function read_next(list)                -- read the next page of a set if there is none left
  if list.k > #list.page then
    local stop = list.at + page - 1
    list.page, list.k = backwards and call('ZREVRANGE', list.name, list.at, stop, 'WITHSCORES')
      or call('ZRANGE', list.name, list.at, stop, 'WITHSCORES'), 1
    list.at = list.at + page
  end
  list.id, list.score = list.page[list.k], tonumber(list.page[list.k + 1])
  list.k = list.k + 2
  return list.id
end

for k = 7, #ARGV do
  local list = { name = ns .. ':' .. ARGV[k], at = 0, page = {}, k = 1 }
  if from_score then
    local size = call('ZCARD', list.name)
    local before, is_there = members_before(list.name, size, from_score, ARGV[5])
    list.at = backwards and size - before or before + is_there
  end
  if read_next(list) then lists[#lists + 1] = list end
end

local function goes_first(a, b)
  if a.score ~= b.score then return (a.score < b.score) ~= backwards end
  return earlier(a.id, b.id) ~= backwards
end

local ids, scores = {}, {}
while #ids < most and #lists > 0 do
  local first = 1
  for k = 2, #lists do
    if goes_first(lists[k], lists[first]) then first = k end
  end
  local list = lists[first]
  ids[#ids + 1], scores[#scores + 1] = list.id, list.page[list.k - 1]
  if not read_next(list) then table.remove(lists, first) end
end
local bodies, raws, rows = fetch(JOB, ids), fetch(ROW, ids), {}
for k = 1, #ids do
  rows[4 * k - 3], rows[4 * k - 2] = ids[k], scores[k]
  rows[4 * k - 1], rows[4 * k] = bodies[k] or '', listed(ids[k], raws[k], ARGV[6] == '1') or ''
end
return rows
