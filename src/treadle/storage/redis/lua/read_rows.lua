-- ARGV: now, '1' for all checkpoints, then ids. Returns { job, row or '', ... }; '' for both if there is no such job.
local ids, rows = {}, {}
for k = 3, #ARGV do ids[k - 2] = ARGV[k] end
local bodies, raws = fetch(JOB, ids), fetch(ROW, ids)
for k = 1, #ids do
  rows[2 * k - 1], rows[2 * k] = bodies[k] or '', bodies[k] and listed(ids[k], raws[k], ARGV[2] == '1') or ''
end
return rows
