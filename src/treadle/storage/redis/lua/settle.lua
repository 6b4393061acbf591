-- ARGV: now, then for each outcome: id, words, number of its follow-up jobs, and id body of each; at the end the claim,
-- if the script also makes one.
-- words: 's' state version attempt keep | tail of the row   -- a plain ending
--    or: 'f' | the outcome as msgpack
-- Returns { number, status, subject, other, ... } for the outcomes that were not simply applied. Status 'left': the job
-- is in another shard; 'cross': the workflow `subject` must first move to the first shard.
nothing_rare = call('EXISTS', MOVE, PARENTS, RULES, OPENS, RECOUNT) == 0
local stopped = stopped_by_move(CLOSING)
if stopped then return stopped end
local refusals = {}

local function refuse(number, status, subject, other)
  local n = #refusals
  refusals[n + 1], refusals[n + 2], refusals[n + 3], refusals[n + 4] = number, status, subject or '', other or ''
end

local ids, encoded, followups_at, times, total = {}, {}, {}, {}, 0
do
  local k, width = 2, #ARGV
  while k < width do
    local id = ARGV[k]
    total = total + 1
    ids[total], encoded[total], followups_at[total], times[id] = id, ARGV[k + 1], k + 2, (times[id] or 0) + 1
    k = k + 3 + 2 * ARGV[k + 2]
  end
end

-- --- the bulk path: plain jobs that run, end, and have no job that waits for them, with one outcome each
local is_settled = {}

-- Returns for each outcome whether others wait for its job.
local function awaited()
  local flags = {}
  if not nothing_rare and call('EXISTS', PARENTS) == 1 then
    for from = 1, total, STEP do
      local batch = call('SMISMEMBER', PARENTS, unpack(ids, from, math.min(from + STEP - 1, total)))
      for k, flag in ipairs(batch) do flags[from + k - 1] = flag == 1 end
    end
  end
  return flags
end

local HEAVY = 10000                      -- bytes of a result above which a full server refuses it

-- The common parts of rows that end alike: moments from due_at on, rank, lengths, worker, queue, limits, task. `ids`:
-- the jobs that end now; nil if this path cannot end them, because one of their limits blocks jobs. `names`: queue and
-- task. `others`: how many fail or are cancelled, by state.
local any_blocked
local function group_of(rest)
  local worker_length, queue_length = struct.unpack('>HH', rest, 51)
  local worker, queue = 55, 55 + worker_length
  local group = {
    moments = NONE_BYTES .. sub(rest, 9, 24) .. NOW_BYTES .. NOW_BYTES,
    middle = sub(rest, 49, 54 + worker_length + queue_length), worker = sub(rest, worker, queue - 1),
    queue = 'queue:' .. sub(rest, queue, queue + queue_length - 1), limits = {}, ids = {}, names = nil,
  }
  local task
  if byte(rest, queue + queue_length) == 144 then          -- no limits
    task = sub(rest, queue + queue_length + 4)
  else
    group.limits, task = cmsgpack.unpack(sub(rest, queue + queue_length))
    if any_blocked == nil then any_blocked = call('EXISTS', ns .. ':asides') == 1 end
    for _, limit in ipairs(any_blocked and group.limits or {}) do
      if call('SISMEMBER', ns .. ':asides', limit[1]) == 1 then group.ids = nil end
    end
  end
  group.names = sub(rest, queue, queue + queue_length - 1) .. '\0' .. task
  return group
end

-- Returns the common parts of equal outcomes: the start that the row must have, and the new start and tail.
local function parts_of(word)
  if byte(word) ~= 115 then return {} end
  local keep, tail = sub(word, 11, 18), sub(word, 19)
  local version = struct.pack('>I4', struct.unpack('>I4', word, 3) + 1)
  return { before = string.char(RUNNING, PLAIN) .. sub(word, 3, 6), attempt = sub(word, 7, 10), tail = tail,
           after = sub(word, 2, 2) .. (tail == '' and '\1' or '\5') .. version .. '\0\0\0\0',
           keep = keep ~= NONE_BYTES and keep, failed = byte(word, 2) == FAILED, state = byte(word, 2) }
end

-- Returns, for rows that are kept this many seconds, expires_at as bytes and as a score, and a list for their ids.
local function expiry_of(keep)
  local moment = now + math.max(struct.unpack('>d', keep), ${KEEP_LEAST})
  return { struct.pack('>d', moment), num(moment), {} }
end

-- Jobs with the same ended_at and expires_at become a pack (packs.lua). Single entries in two lists took 3 of the 11 us
-- that a job cost the server while a million ended, and half of the added memory.
local function list_ended(expiry, ending)
  local ended_ids = expiry[3]
  if #ended_ids > 1 then
    local packs, name = ns .. ':packs', NOW_BYTES .. expiry[1]
    if call('HSETNX', packs, name, cmsgpack.pack(ended_ids)) == 0 then     -- an earlier call has made it
      local names = cmsgpack.unpack(call('HGET', packs, name))
      for _, id in ipairs(ended_ids) do names[#names + 1] = id end
      call('HSET', packs, name, cmsgpack.pack(names))
    end
    call('ZADD', packs .. ':old', expiry[2], name)
    call('ZADD', packs .. ':ended', ending, name)
  else
    call('ZADD', OLD, expiry[2], ended_ids[1])
    call('ZADD', ENDED, ending, ended_ids[1])
  end
end

-- List the jobs that failed, by queue; see kinds.lua.
local function list_failed(failed)
  for queue, entries in pairs(failed) do
    local name = 'failed:' .. sub(queue, 7)            -- `queue` begins with "queue:"
    call_many('ZADD', ns .. ':of:' .. name, entries, 2)
    call('SADD', ns .. ':of', name)
  end
end

-- Count the endings of a group.
local function count_ended(group)
  local n, names = #group.ids, ':' .. group.names
  local was, is = 'running' .. names, 'succeeded' .. names
  counts[was] = (counts[was] or 0) - n
  for state, jobs in pairs(group.others or {}) do
    local other = STATES[state] .. names
    counts[other] = (counts[other] or 0) + jobs
    n = n - jobs
  end
  counts[is] = (counts[is] or 0) + n
end

-- Release the slots, limit by limit.
local function release_slots(groups)
  local limited = {}
  for _, group in pairs(groups) do
    local n = group.ids and #group.ids or 0
    if n > 0 then
      count_ended(group)
      call_many('SREM', ns .. ':held:' .. group.worker, group.ids)
      count_slots(group.queue, -n)
      for _, limit in ipairs(group.limits) do
        limited[#limited + 1] = limit[1]
        count_slots(limit[1], -n * limit[2])
      end
    end
  end
  call_many('ZREM', OPENS, limited)           -- these limits have no blocked jobs
end

do
  local raws, parents = fetch(ROW, ids), awaited()
  local set, due, topics, n = {}, {}, {}, 0
  local parts_by_outcome, expiries, groups, failed, heaviest = {}, {}, {}, {}, 0
  local ending, watch = num(-now), recount()
  for k = 1, total do
    local raw, id, parts = raws[k], ids[k], parts_by_outcome[encoded[k]]
    if not parts then
      parts = parts_of(encoded[k])
      parts_by_outcome[encoded[k]] = parts
    end
    if raw and sub(raw, 1, 6) == parts.before and times[id] == 1 and not parents[k] then
      local rest = sub(raw, 67)
      local group = groups[rest]
      if not group then
        group = group_of(rest)
        groups[rest] = group
      end
      if group.ids then
        local keep = parts.keep or (parts.failed and sub(raw, 35, 42) or sub(raw, 27, 34))
        local expiry = expiries[keep]
        if not expiry then
          expiry = expiry_of(keep)
          expiries[keep] = expiry
        end
        n = n + 1
        is_settled[k] = true
        if #parts.tail > heaviest then heaviest = #parts.tail end
        group.ids[#group.ids + 1] = id
        set[2 * n - 1], set[2 * n] = id, parts.after .. sub(raw, 11, 14) .. parts.attempt .. sub(raw, 19, 66)
          .. group.moments
          .. expiry[1] .. group.middle .. parts.tail
        due[n], topics[n] = id, 'job:' .. id
        expiry[3][#expiry[3] + 1] = id
        if parts.state ~= SUCCEEDED then
          group.others = group.others or {}
          group.others[parts.state] = (group.others[parts.state] or 0) + 1
        end
        if watch then
          local names = ':' .. group.names
          watch.follow((struct.unpack('>d', raw, 43)), id, 'running' .. names, STATES[parts.state] .. names)
        end
        if parts.failed then
          local entries = failed[group.queue] or {}
          failed[group.queue] = entries
          entries[#entries + 1], entries[#entries + 2] = ending, id
        end
      end
    end
  end
  if n > 0 then
    -- A full server accepts endings (see `write_without_memory`), but refuses large results: then HSET comes first.
    if heaviest > HEAVY then call_many('HSET', ROW, set, 2) end
    call_many('ZREM', DUE, due)
    if heaviest <= HEAVY then call_many('HSET', ROW, set, 2) end
    for _, expiry in pairs(expiries) do list_ended(expiry, ending) end
    list_failed(failed)
    release_slots(groups)
    publish(ns .. ':ends', cmsgpack.pack(topics))
  end
  if n == total then return refusals end
end
