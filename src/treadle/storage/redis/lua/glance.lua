-- ARGV: now, what to return, and with 'names' the names "<kind>:<queue>" to count. kind: queued, running, or one of
-- kinds.lua. 'all' and 'counts' count all kinds, 'stats' counts only queued jobs.
-- Returns { now as 8 bytes, { kind, queue, jobs, position of the first queued job or '', ... }, { the names that were
-- not counted, because one call counts only so many } }. With 'all' and 'stats' it adds { facts, live, begun, the
-- limits that block a job, the limits with a rate, workers }, and with 'stats' { the kept counts }. Changes nothing.
local MOST = 1000
local counts, rest, what = {}, {}, ARGV[2]

local function add_count(kind, queue, jobs, first)
  if jobs > 0 then
    local n = #counts
    counts[n + 1], counts[n + 2], counts[n + 3], counts[n + 4] = kind, queue, jobs, first
  end
end

local function count(name)
  local kind, queue = string.match(name, '^(%a+):(.*)$')
  if kind == 'queued' then
    local jobs, first = 0, nil
    for _, rank in ipairs(call('ZRANGE', ns .. ':lines:' .. queue, 0, -1)) do
      local list = ns .. ':line:' .. rank .. ':' .. queue
      local head = tonumber(call('ZRANGE', list, 0, 0, 'WITHSCORES')[2])
      if head then
        jobs = jobs + call('ZCARD', list)
        first = math.min(head, first or head)
      end
    end
    add_count(kind, queue, jobs, first and num(first) or '')
  elseif kind == 'running' then
    local jobs = tonumber(call('HGET', LIVE, 'queue:' .. queue) or 0)
    add_count(kind, queue, jobs + call('ZCARD', ns .. ':of:resumed:' .. queue), '')
  else
    add_count(kind, queue, call('ZCARD', ns .. ':of:' .. name), '')
  end
end

local names, live = {}, {}
if what == 'names' then
  for k = 3, #ARGV do names[k - 2] = ARGV[k] end
else
  live = call('HGETALL', LIVE)
  local seen = {}
  local function add(kind, queue)
    local name = kind .. ':' .. queue
    if not seen[name] then
      seen[name], names[#names + 1] = true, name
    end
  end
  for _, queue in ipairs(call('SMEMBERS', ns .. ':lines')) do add('queued', queue) end
  for k = 1, what == 'stats' and 0 or #live, 2 do
    if sub(live[k], 1, 6) == 'queue:' then add('running', sub(live[k], 7)) end
  end
  for _, name in ipairs(what == 'stats' and {} or call('SMEMBERS', ns .. ':of')) do
    local kind, queue = string.match(name, '^(%a+):(.*)$')
    add(kind == 'resumed' and 'running' or kind, queue)
  end
end
for k, name in ipairs(names) do
  if k <= MOST then count(name) else rest[k - MOST] = name end
end
if what == 'names' or what == 'counts' then return { NOW_BYTES, counts, rest } end

local rated = call('HKEYS', ns .. ':spent')
for _, key in ipairs(call('HKEYS', ns .. ':bucket')) do rated[#rated + 1] = key end
local uses = { call('HGETALL', ns .. ':facts'), live, call('HGETALL', BEGUN), call('SMEMBERS', ns .. ':asides'), rated,
               call('HGETALL', ns .. ':workers') }
return { NOW_BYTES, counts, rest, uses, what == 'stats' and call('HGETALL', COUNTS) or nil }
