-- What has just come is handed over: the claim of whoever asked for it, made here for one job, is said at his address.
local found = claim()
pay()
if #found ~= 5 then return false end
local ticket, body, row = asked.worker, found[4], found[5]
hint(address, struct.pack('>HI4', #ticket, #body) .. ticket .. body .. row)
return true
