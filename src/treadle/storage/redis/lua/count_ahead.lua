-- ARGV: now, queue, rank, position, id. Returns how many jobs are queued before that spot. Changes nothing.
local queue, own_rank, jobs = ARGV[2], tonumber(ARGV[3]), 0
for _, rank in ipairs(call('ZRANGE', ns .. ':lines:' .. queue, 0, -1)) do
  local list = ns .. ':line:' .. rank .. ':' .. queue
  local size = call('ZCARD', list)
  if tonumber(rank) > own_rank then
    jobs = jobs + size
  elseif tonumber(rank) == own_rank then
    jobs = jobs + members_before(list, size, tonumber(ARGV[4]), ARGV[5])
  end
end
return jobs
