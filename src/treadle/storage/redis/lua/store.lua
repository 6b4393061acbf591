-- The per-row path of enqueue, for all jobs. ARGV: now, call, until (part.lua), then id body ...
-- Returns { now, { body or '' if it is new, row, ... } } for all jobs; or { '', what is wrong, ... } and stores
-- nothing.
define_shared()
local jobs = {}
for at = 4, #ARGV, 2 do jobs[#jobs + 1] = { ARGV[at], ARGV[at + 1] } end
if is_stored then
  local ids, rows = {}, {}
  for k, new in ipairs(jobs) do ids[k] = new[1] end
  local bodies, raws = fetch(JOB, ids), fetch(ROW, ids)
  for k = 1, #ids do rows[2 * k - 1], rows[2 * k] = bodies[k] or '', Row.whole(ids[k], raws[k]) or '' end
  return { num(now), rows }
elseif check_pointers then
  local ids = {}
  for _, new in ipairs(jobs) do
    ids[#ids + 1] = new[1]
    ids[#ids + 1] = Row.job(new[1], new[2]).root
  end
  if has_pointer(ids) then return { '\1' } end
end
local answers, wrong, id_or_key, other = NewJobs.plan(jobs)
if not answers then return { '', wrong, id_or_key, other } end
local refusal = has_bounds and make_room(jobs, answers)
if refusal then return refusal end
local born, rows = NewJobs.store_all(jobs, answers), {}
if ARGV[2] ~= '' then call('ZADD', ns .. ':done', '+inf', ARGV[2]) end
Unit.finish()
local ids = {}
for k, new in ipairs(jobs) do ids[k] = answers[new[1]] end
local raws = fetch(ROW, ids)
for k, new in ipairs(jobs) do
  local id = ids[k]
  rows[2 * k - 1] = born[id] and id == new[1] and '' or call('HGET', JOB, id)
  rows[2 * k] = Row.whole(id, raws[k]) or ''
  born[id] = nil                         -- if the call repeats the id, the body stored first is returned
end
return { num(now), rows }
