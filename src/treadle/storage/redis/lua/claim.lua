-- ARGV: now, ..., the claim as msgpack. A claim over several shards adds `advanced` (due rows are advanced already) and
-- `more` (claim even if the claim id has jobs here).
-- Returns { now, next due time or '', again, body, row, ... }, the times as 8 bytes.
-- again: 1 if the claim is repeated, 2 if there are more jobs to check. If there are no jobs, 2 may be followed by the
-- spot up to which this call has read; the next call passes it as `passed`.
if nothing_rare == nil then nothing_rare = call('EXISTS', MOVE, RULES, OPENS, RECOUNT) == 0 end
local stopped = stopped_by_move()
if stopped then return stopped end
Unit = nil                                  -- a settle earlier in this script has flushed its rows
local request = open_claim or cmsgpack.unpack(ARGV[#ARGV])
local PASSED_MOST = open_claim and 100 or 5000  -- rows of other tasks that one call reads past; then Python calls again
local SKIP_WORTH, SETS_MOST = 100, 16  -- passed rows worth an entry in `skips`; sets of tasks noted for a queue
local BLOCKED_MOST = 500                   -- jobs blocked in one call, during which the server does nothing else
local blocked_count = 0
local bodies, rows, n = {}, {}, 0

-- --- due rows, and the next due time

local limited = not nothing_rare and call('EXISTS', RULES, OPENS) > 0
local due = tonumber(call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2])
local opens_at = limited and tonumber(call('ZRANGE', OPENS, 0, 0, 'WITHSCORES')[2]) or nil
local nothing_due = (due or now + 1) > now and (opens_at or now + 1) > now
local has_rules = limited and call('EXISTS', RULES) == 1

local function count(key, cost)
  if Unit then
    Unit.add(LIVE, key, cost)
    Unit.add(BEGUN, key, cost)
  else
    count_slots(key, cost)
  end
end

-- There is no hand-off while limits exist or rows are due, because an enqueue must stay cheap.
if open_claim and not (nothing_due and not has_rules) then return {} end

local function earliest(a, b)
  if a and b then return math.min(a, b) end
  return a or b
end

local room, excluded, limit = {}, {}, open_claim and 1 or request.limit
local tasks = request.tasks
local no_room, task_set = false, nil            -- no task has room; the tasks with room as one name (`set_of_tasks`)
local function update_room()
  no_room, task_set = tasks ~= nil, nil
  for task in pairs(tasks or {}) do
    if (room[task] or 1) > 0 then no_room = false end
  end
end

local function wanted(id, task)
  return not excluded[id] and (not tasks or tasks[task]) and (room[task] or 1) > 0
end

local function lease_of(task) return tasks and tasks[task][2] or request.lease end

