-- ARGV: now, then ids. Returns { job, row or '', ... }; '' for both if there is no such job.
local ids, rows = {}, {}
for k = 2, #ARGV do ids[k - 1] = ARGV[k] end
local bodies, raws = fetch(JOB, ids), fetch(ROW, ids)
for k = 1, #ids do
  rows[2 * k - 1], rows[2 * k] = bodies[k] or '', bodies[k] and whole(ids[k], raws[k]) or ''
end
return rows
