-- Direct hand-off: makes the waiting worker's claim for one job, and publishes the job to its mailbox.
local found = claim()
pay()
if #found ~= 5 then return false end
local claim_id, body, row = asked.worker, found[4], found[5]
hint(address, struct.pack('>HI4', #claim_id, #body) .. claim_id .. body .. row)
return true
