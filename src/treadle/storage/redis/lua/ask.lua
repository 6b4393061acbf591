-- Who asked in vain for a job of this queue, and would still take it? The ask is a key of its own, which goes by itself: until
-- when | the claim as msgpack. `asking:<queue>` names the addresses. Who asked last comes first: he is the most likely to be
-- there still.
local address, asked
repeat
  address = call('ZPOPMAX', ns .. ':asking:' .. queue)[1]
  if not address then return false end
  local words = call('GETDEL', ns .. ':ask:' .. address)
  -- A killed process hears nothing, and the server knows. (A node of a cluster knows its own only, then nobody listens.)
  if words and struct.unpack('>d', words) > now and call('PUBSUB', 'NUMSUB', address)[2] > 0 then
    asked = cmsgpack.unpack(sub(words, 9))
  end
until asked
