-- ARGV: now, what to tell, then names "<kind>:<queue>" ('all' and 'counts': of all queues). kind: queued, running, or
-- one of kinds.lua.
-- Returns { now as 8 bytes, { kind, queue, jobs, position of the first queued job or '', ... }, { the names that were
-- not counted, because one call counts only so many } }. With 'all' it adds what the limits and workers are read from:
-- { facts, live, begun, the limits that block a job, the limits with a rate, workers }. Changes nothing.
local MOST = 1000
local counts, rest, what = {}, {}, ARGV[2]

local function said(kind, queue, jobs, first)
  if jobs > 0 then
    local n = #counts
    counts[n + 1], counts[n + 2], counts[n + 3], counts[n + 4] = kind, queue, jobs, first
  end
end

local function line(queue)
  local jobs, first = 0, nil
  for _, rank in ipairs(call('ZRANGE', ns .. ':lines:' .. queue, 0, -1)) do
    local list = ns .. ':line:' .. rank .. ':' .. queue
    local size = call('ZCARD', list)
    if size > 0 then
      local head = tonumber(call('ZRANGE', list, 0, 0, 'WITHSCORES')[2])
      if not first or head < first then first = head end
      jobs = jobs + size
    end
  end
  said('queued', queue, jobs, first and num(first) or '')
end

local function count(name)
  local kind, queue = string.match(name, '^(%a+):(.*)$')
  if kind == 'queued' then
    line(queue)
  elseif kind == 'running' then
    local jobs = tonumber(call('HGET', LIVE, 'queue:' .. queue) or 0)
    said(kind, queue, jobs + call('ZCARD', ns .. ':of:resumed:' .. queue), '')
  else
    said(kind, queue, call('ZCARD', ns .. ':of:' .. name), '')
  end
end

local names, live = {}, {}
if what == 'names' then
  for k = 3, #ARGV do names[k - 2] = ARGV[k] end
else
  live = call('HGETALL', LIVE)
  local known = {}
  local function add(kind, queue)
    local name = kind .. ':' .. queue
    if not known[name] then
      known[name], names[#names + 1] = true, name
    end
  end
  for _, queue in ipairs(call('SMEMBERS', ns .. ':lines')) do add('queued', queue) end
  for k = 1, #live, 2 do
    if sub(live[k], 1, 6) == 'queue:' then add('running', sub(live[k], 7)) end
  end
  for _, name in ipairs(call('SMEMBERS', ns .. ':of')) do
    local kind, queue = string.match(name, '^(%a+):(.*)$')
    add(kind == 'resumed' and 'running' or kind, queue)
  end
end
for k, name in ipairs(names) do
  if k <= MOST then count(name) else rest[k - MOST] = name end
end
if what ~= 'all' then return { NOW_BYTES, counts, rest } end
local rated = call('HKEYS', ns .. ':spent')
for _, key in ipairs(call('HKEYS', ns .. ':bucket')) do rated[#rated + 1] = key end
return { NOW_BYTES, counts, rest, call('HGETALL', ns .. ':facts'), live, call('HGETALL', BEGUN),
         call('SMEMBERS', ns .. ':asides'), rated, call('HGETALL', ns .. ':workers') }
