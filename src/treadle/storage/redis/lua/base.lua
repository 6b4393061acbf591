-- Helpers in every script: the current time, numbers as text, calls with many values.
-- ARGV[1] is the time, or '' for the server's own.
local now
if ARGV[1] == '' then
  local time = call('TIME')
  now = time[1] + time[2] / 1e6
else
  now = tonumber(ARGV[1])
end
local NOW_BYTES = struct.pack('>d', now)

-- The mark of a move (storage/transfer.py) stops a verb unless its role is arrived, aborted, or begins with `allowed`.
local MOVE, mark = ns .. ':move', nil     -- read only once, even if two verbs run in one script
local nothing_rare  -- true: there is no mark, rule, opening or recount (after a settle, also no parent)
local function stopped_by_move(allowed)
  if mark == nil then mark = not nothing_rare and call('GET', MOVE) end
  if mark and byte(mark) ~= 97 and byte(mark) ~= allowed then return { '\0', mark } end
end
local CLOSING = 99

-- Whether one of these ids has a pointer to another shard. A pointer marked for dropping ("x") is kept again.
local function has_pointer(ids)
  if not KEYS[3] or #ids == 0 or call('EXISTS', POINTERS) == 0 then return false end
  local is_known = false
  for from = 1, #ids, 1000 do
    local batch = { unpack(ids, from, math.min(from + 999, #ids)) }
    for k, pointer in ipairs(call('HMGET', POINTERS, unpack(batch))) do
      if pointer then
        is_known = true
        if byte(pointer) == 120 then
          call('HSET', POINTERS, batch[k], (string.gsub(pointer, '^[^@]*', string.format('%.17g', now))))
        end
      end
    end
  end
  return is_known
end

-- A number as text with all its digits: tostring writes only 14.
local function num(x) return string.format('%.17g', x) end

-- Whether one id sorts before another: by bytes, as in sorted sets and in every storage. `<` follows the server's
-- locale (`locale-collate`, or LC_COLLATE at its start), which may ignore case or hyphens.
local function earlier(a, b)
  if 'B' < 'a' then return a < b end
  for k = 1, math.min(#a, #b) do
    local x, y = byte(a, k), byte(b, k)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- Make a call with any number of values, in steps; groups of `width` values stay together.
local function call_many(verb, key, values, width)
  local n, step = #values, STEP * (width or 1)
  if n == 0 then return 0 end
  if n <= step then return call(verb, key, unpack(values)) end
  local sum = 0
  for from = 1, n, step do
    sum = sum + (tonumber(call(verb, key, unpack(values, from, math.min(from + step - 1, n)))) or 0)
  end
  return sum
end

-- A full server refuses a script at its first write if that command may need memory; later writes are not checked. A
-- script that frees memory or keeps running jobs alive must not fail, so it begins with a write that needs none.
local function write_without_memory() call('DEL', ns .. ':none') end

-- Remove a list from its index if it is empty; return whether it was.
local function drop_if_empty(kind, key, rank, list)
  if call('EXISTS', list) == 1 then return false end
  call('ZREM', ns .. ':' .. kind .. 's:' .. key, rank)
  if kind == 'line' and call('EXISTS', ns .. ':lines:' .. key) == 0 then call('SREM', ns .. ':lines', key) end
  return true
end

-- Append an answer, after its length.
local function append_answer(answers, answer)
  local n, count = #answers, #answer
  answers[n + 1] = count
  for k = 1, count do answers[n + 1 + k] = answer[k] end
end

-- Slots taken and released, by limit. They are written at the end of the script, or before slots are counted
-- (`define_shared`). Slots that one script releases and takes again are not written at all.
local slot_changes = {}
local function count_slots(key, cost) slot_changes[key] = (slot_changes[key] or 0) + cost end

local function write_slots()
  for key, cost in pairs(slot_changes) do
    for _, hash in ipairs(cost ~= 0 and { LIVE, BEGUN } or {}) do
      if call('HINCRBY', hash, key, cost) == 0 then call('HDEL', hash, key) end
    end
  end
  slot_changes = {}
end

-- SKIPS maps rank and queue, and a set of tasks, to the spot up to which there is no job of these tasks
-- (claim_queues.lua). A job that is queued before that spot moves the spot to its position.
local has_skips                           -- whether SKIPS has any entry
local function adjust_skips(rank, queue, position)
  if has_skips == nil then has_skips = call('EXISTS', SKIPS) == 1 end
  local stored = has_skips and call('HGET', SKIPS, rank .. ':' .. queue)
  if not stored then return end
  local spots, changed = cmsgpack.unpack(stored), false
  for set, spot in pairs(spots) do
    if spot[1] > position or (spot[1] == position and spot[2] ~= '') then
      spots[set], changed = { position, '' }, true
    end
  end
  if changed then call('HSET', SKIPS, rank .. ':' .. queue, cmsgpack.pack(spots)) end
end

local function lane_key(queue, rank, lane)
  return ns .. ':lane:' .. rank .. ':' .. #queue .. ':' .. queue .. ':' .. lane
end

local function fetch(key, fields)
  local n = #fields
  if n == 0 then return {} end
  if n <= STEP then return call('HMGET', key, unpack(fields)) end
  local values = {}
  for from = 1, n, STEP do
    for _, value in ipairs(call('HMGET', key, unpack(fields, from, math.min(from + STEP - 1, n)))) do
      values[#values + 1] = value
    end
  end
  return values
end

-- The kept counts: COUNTS maps "<kind>:<queue>\0<task>" to the number of these jobs. Changes are collected here, and
-- written at the end of the script (write_counts.lua). The bulk paths add to them without a function: each closure or
-- table that a script creates costs as much as 1 % of a trip with 8 jobs.
local counts = {}
local recounting                               -- the recount in progress (recount.lua); false: there is none

-- Returns the recount in progress. Changes of rows that it has read must also go into its own counts.
local function recount()
  if recounting == nil then
    local stored = not nothing_rare and call('HGET', RECOUNT, '')
    recounting = stored and { changes = {}, moment = (struct.unpack('>d', stored)), id = sub(stored, 9) }
  end
  if recounting and not recounting.follow then
    local changes, moment, last = recounting.changes, recounting.moment, recounting.id
    -- Moves a job created at `made` from the count `was` to the count `is`. `was` is nil for a new job, `is` for a
    -- deleted one.
    function recounting.follow(made, id, was, is)
      if made < moment or (made == moment and not earlier(last, id)) then
        if was then changes[was] = (changes[was] or 0) - 1 end
        if is then changes[is] = (changes[is] or 0) + 1 end
      end
    end
  end
  return recounting
end
