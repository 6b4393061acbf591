-- ARGV: now, then for each id: id, and its new pointer if it is not here: '' for none, '0' for the first shard, or
-- '<n>'. Returns { '1' if a workflow is being moved to the first shard, then for each id: the root of its workflow if
-- the id is here, '@<n>' if a pointer was found, or '' }.
slowly()
local told = { call('EXISTS', ns .. ':leaving') == 1 and '1' or '' }
for at = 2, #ARGV, 2 do
  local id, to, said = ARGV[at], ARGV[at + 1], ''
  local body = call('HGET', JOB, id)
  if body then
    said = R.job(id, body).root
    if not said or said == '' then said = id end
  else
    local pointer = call('HGET', LEFT, id)
    if pointer then
      said = string.match(pointer, '@.*$') or '@0'
      if to ~= '' then has_left({ id }) end
    elseif to ~= '' then
      call('HSET', LEFT, id, num(now) .. (to == '0' and '' or '@' .. to))
    end
  end
  told[#told + 1] = said
end
return told
