-- ARGV: now, then for each id: id, and its new pointer if it is not here: '' for none, '0' for the first shard, or
-- '<n>'. Returns { '1' if a workflow is being moved to the first shard, then for each id: the root of its workflow if
-- the id is here, '@<n>' if a pointer was found, or '' }.
define_shared()
local answers = { call('EXISTS', ns .. ':leaving') == 1 and '1' or '' }
for k = 2, #ARGV, 2 do
  local id, new_pointer, place = ARGV[k], ARGV[k + 1], ''
  local body = call('HGET', JOB, id)
  if body then
    place = Row.job(id, body).root
    if not place or place == '' then place = id end
  else
    local pointer = call('HGET', POINTERS, id)
    if pointer then
      place = string.match(pointer, '@.*$') or '@0'
      if new_pointer ~= '' then has_pointer({ id }) end
    elseif new_pointer ~= '' then
      call('HSET', POINTERS, id, num(now) .. (new_pointer == '0' and '' or '@' .. new_pointer))
    end
  end
  answers[#answers + 1] = place
end
return answers
