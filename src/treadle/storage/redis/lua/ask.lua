-- Who asked in vain for a job of this queue, and would still take it? The ask is a key of its own, which goes by itself: until
-- when | the claim as msgpack. `asking:<queue>` names the addresses. Who asked last comes first: he is the most likely to be
-- there still.
local address, asked
repeat
  address = redis.pcall('ZPOPMAX', ns .. ':asking:' .. queue)[1]     -- the job is stored: nothing may fail any more
  if not address then return false end
  local words = redis.pcall('GETDEL', ns .. ':ask:' .. address)
  -- A killed process hears nothing, and the server knows. (A node of a cluster knows its own only, then nobody listens.)
  if type(words) == 'string' and struct.unpack('>d', words) > now
    and (redis.pcall('PUBSUB', 'NUMSUB', address)[2] or 0) > 0 then
    asked = cmsgpack.unpack(sub(words, 9))
  end
until asked
