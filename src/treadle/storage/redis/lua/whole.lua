-- Returns a stored row as `rows.py` reads it: with the checkpoints of its job behind it, and the length of these.
local function whole(id, raw)
  if not raw or byte(raw, 2) < NOTED then return raw end
  local packed = cmsgpack.pack(call('HGETALL', ns .. ':checkpoints:' .. id))
  return raw .. packed .. struct.pack('>I4', #packed)
end
