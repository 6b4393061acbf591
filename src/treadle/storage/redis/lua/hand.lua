-- A job that has just come is handed to a worker that asked in vain: its claim is made here, for one job.
-- The ask is a key of its own, which goes by itself: until when | the claim as msgpack.
-- `asking:<queue>` names the addresses. Who asked last comes first: he is the most likely to be there still.
local function handed(queue)
  local asking = ns .. ':asking:' .. queue
  while true do
    local address = call('ZPOPMAX', asking)[1]
    if not address then return false end
    local words = call('GETDEL', ns .. ':ask:' .. address)
    -- A killed process hears nothing, and the server knows. (A node of a cluster knows its own only, then nobody listens.)
    if words and struct.unpack('>d', words) > now and call('PUBSUB', 'NUMSUB', address)[2] > 0 then
      asked = cmsgpack.unpack(sub(words, 9))
      local found = claim()
      if #found ~= 5 then return false end
      local ticket, body, row = asked.worker, found[4], found[5]
      call('PUBLISH', address, struct.pack('>HI4', #ticket, #body) .. ticket .. body .. row)
      return true
    end
  end
end
