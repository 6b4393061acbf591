-- Finds a worker that waits for a job of this queue. Its request is a key that expires: end | the claim as msgpack.
-- `asking:<queue>` has the mailbox addresses, sorted by that end. It tries the last one first, which most likely still
-- listens.
local address, open_claim
repeat
  address = redis.pcall('ZPOPMAX', ns .. ':asking:' .. queue)[1]     -- pcall: the job is stored, so nothing may fail
  if not address then return false end
  local stored = redis.pcall('GETDEL', ns .. ':ask:' .. address)
  -- The mailbox of a killed process has no subscriber. (A cluster has no hand-off: a node counts only its own.)
  if type(stored) == 'string' and struct.unpack('>d', stored) > now
    and (redis.pcall('PUBSUB', 'NUMSUB', address)[2] or 0) > 0 then
    open_claim = cmsgpack.unpack(sub(stored, 9))
  end
until open_claim
