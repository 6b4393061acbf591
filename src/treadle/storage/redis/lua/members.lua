-- ARGV: now, then names "<kind>:<queue>" as in glance.lua. Returns the ids of their jobs, in no order. For "running" it
-- returns only the jobs that run after their function is done. Changes nothing.
local ids = {}
local function add_ids(list)
  for _, id in ipairs(call('ZRANGE', list, 0, -1)) do ids[#ids + 1] = id end
end
for k = 2, #ARGV do
  local kind, queue = string.match(ARGV[k], '^(%a+):(.*)$')
  if kind == 'queued' then
    for _, rank in ipairs(call('ZRANGE', ns .. ':lines:' .. queue, 0, -1)) do
      add_ids(ns .. ':line:' .. rank .. ':' .. queue)
    end
  elseif kind == 'system' then
    add_ids(ns .. ':system')
  elseif kind ~= 'running' then
    add_ids(ns .. ':of:' .. ARGV[k])
  end
end
return ids
