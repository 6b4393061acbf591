-- Returns a stored row as `rows.py` reads it: with the checkpoints of its job after it, and the length of these.
local function whole(id, raw)
  if not raw or byte(raw, 2) < NOTED then return raw end
  local packed = cmsgpack.pack(call('HGETALL', ns .. ':checkpoints:' .. id))
  return raw .. packed .. struct.pack('>I4', #packed)
end

-- The same for a page: unless it is to be whole, only with the checkpoints whose names begin with 'treadle:'.
local function listed(id, raw, is_whole)
  if is_whole or not raw or byte(raw, 2) < NOTED then return whole(id, raw) end
  local key, pairs_of_own = ns .. ':checkpoints:' .. id, {}
  for _, name in ipairs(call('HKEYS', key)) do
    if sub(name, 1, 8) == 'treadle:' then
      pairs_of_own[#pairs_of_own + 1], pairs_of_own[#pairs_of_own + 2] = name, call('HGET', key, name)
    end
  end
  local packed = cmsgpack.pack(pairs_of_own)
  return raw .. packed .. struct.pack('>I4', #packed)
end
