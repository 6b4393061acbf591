-- Direct hand-off: makes the waiting worker's claim for one job, and publishes the job to its mailbox.
local claimed = claim()
write_slots()
if #claimed ~= 5 then return false end
local claim_id, body, row = open_claim.worker, claimed[4], claimed[5]
publish(address, struct.pack('>HI4', #claim_id, #body) .. claim_id .. body .. row)
return true
