-- ARGV: now, how many rows to delete at most, how many to skip, '1' to advance due rows first.
-- Returns { rows deleted, rows that the next call must skip, '1' if there may be more }.
if stopped_by_move() then return { 0, 0, '' } end
define_shared()
write_without_memory()
local CHECKED_MOST = 500                         -- rows that one call checks
if ARGV[4] == '1' then
  Due.advance_due()
  Admission.write()
  Unit.finish()
end
local limit, offset = tonumber(ARGV[2]), tonumber(ARGV[3])
local deleted, skipped = 0, 0

-- The first rows of OLD and of packs, as one list.
local merged, single, packs = new_merge(), {}, {}
local entries = call('ZRANGEBYSCORE', OLD, '-inf', num(now), 'WITHSCORES', 'LIMIT', offset, CHECKED_MOST)
for k = 1, #entries, 2 do
  merge_in(merged, tonumber(entries[k + 1]), entries[k])
  single[entries[k]] = true
end
do
  local most_read, moment = merged.n + CHECKED_MOST, nil
  read_packs(PACKS_OLD, 0,
    function(score) return score <= now and (merged.n < most_read or score == moment) end,
    function(score, ids, name)
      packs[#packs + 1], moment = { name = name, ids = ids }, score
      for _, id in ipairs(ids) do merge_in(merged, score, id) end
    end)
end
local ids, scores = take_first(merged, CHECKED_MOST)

-- Read their rows. Of a plain row without a tail, only queue and task are read, for the counts: such a job has no key
-- and no upstreams, and is its own workflow. The row of a failed job is read whole, because the list that has the job
-- is named after its queue.
local PART = 50                          -- jobs in memory at a time, because their arguments may be large
local rows, raws, read_whole, plain, none_named = {}, fetch(ROW, ids), {}, {}, {}
for k, id in ipairs(ids) do
  local raw = raws[k]
  if raw and byte(raw) >= SUCCEEDED and byte(raw) ~= FAILED and byte(raw, 2) == PLAIN then
    local ended, expires = struct.unpack('>dd', raw, 99)
    local row = { id = id, after = none_named, state = byte(raw), created_at = struct.unpack('>d', raw, 43),
      ended_at = ended, expires_at = expires }
    rows[id], row.views, plain[#plain + 1] = row, row, id
  else
    read_whole[#read_whole + 1] = id
  end
end
do
  local jobs = {}                        -- by queue and task
  for from = 1, #plain, PART do
    local batch = { unpack(plain, from, math.min(from + PART - 1, #plain)) }
    for k, body in ipairs(call('HMGET', JOB, unpack(batch))) do
      if body then
        local task_length, queue_length = struct.unpack('>HH', body, 20)
        local task_end, queue_end = 27 + task_length, 27 + task_length + queue_length
        local names = sub(body, 20, 23) .. sub(body, 28, queue_end)
        jobs[names] = jobs[names] or { task = sub(body, 28, task_end), queue = sub(body, task_end + 1, queue_end) }
        rows[batch[k]].job = jobs[names]
      else
        rows[batch[k]] = nil
      end
    end
  end
end
Unit.load(read_whole)
for _, id in ipairs(read_whole) do rows[id] = Unit.get(id) end

-- The rows that an unfinished row waits for, or whose workflow has an unfinished row.
local needed = {}
do
  local roots = {}
  for k, id in ipairs(ids) do
    local row = rows[id]
    local root = row and row.job.root
    -- a row without a task that was settled with `keep=0` (60 s) is not kept by its root
    if row and row.job.task == '' and row.expires_at <= row.ended_at + 60 then root = nil end
    roots[k] = root and root ~= '' and root or id
  end
  local named, unfinished = fetch(ns .. ':needs', ids), fetch(ns .. ':roots', roots)
  for k, id in ipairs(ids) do
    local first = roots[k] ~= id and Unit.get(roots[k])
    needed[id] = named[k] or unfinished[k] or (first and first.state < SUCCEEDED and (first.job.root or '') == '')
  end
end

-- The rows that have edges: jobs with a row wait for them, or have waited. Most storages have none, and no plain row is
-- checked by itself.
local awaited = {}
if #ids > 0 and call('EXISTS', PARENTS) == 1 then
  for k, is_awaited in ipairs(call('SMISMEMBER', PARENTS, unpack(ids))) do awaited[ids[k]] = is_awaited == 1 end
end

-- Jobs that were cancelled because of an upstream, or failed because of a child, may be reopened; then they wait again
-- for all that they name. Until their own retention is over, those rows stay too. `expiry` is read from what is
-- stored, which changes only after the last look, so the order of the rows does not matter.
local expiry, ups_of = {}, {}            -- by id: when a failed or cancelled row expires; what it waits for if reopened

local function waits_again(id)
  if not ups_of[id] then
    local row, ups = Unit.get(id), {}
    if row and row.reason == (row.state == CANCELLED and 'upstream' or 'children') then
      for _, up in ipairs(row.after) do ups[up] = true end
    end
    ups_of[id] = ups
  end
  return ups_of[id]
end

-- Returns when the last job expires that may wait for this row again; nil if there is none.
local function needed_until(up)
  local downs, unread, latest = Endings.dependents(up), {}, now
  for _, down in ipairs(downs) do
    if expiry[down] == nil then unread[#unread + 1] = down end
  end
  for from = 1, #unread, PART do
    local batch = { unpack(unread, from, math.min(from + PART - 1, #unread)) }
    for k, raw in ipairs(call('HMGET', ROW, unpack(batch))) do
      local state = raw and byte(raw)
      expiry[batch[k]] = (state == FAILED or state == CANCELLED) and (struct.unpack('>d', raw, 107))
    end
  end
  for _, down in ipairs(downs) do
    if expiry[down] and expiry[down] > latest and waits_again(down)[up] then latest = expiry[down] end
  end
  return latest > now and latest or nil
end

local function delete_row(row)
  Endings.drop_key(row)
  for _, up in ipairs(row.after) do Endings.drop_edge(up, row.id) end
  for _, up in ipairs(row.ups or none_named) do Endings.drop_edge(up, row.id) end
  if row.job.key then
    local behind = call('HGET', ns .. ':behind', row.id)
    if behind then
      Endings.drop_edge(behind, row.id)
      call('HDEL', ns .. ':behind', row.id)
    end
  end
  Unit.delete(row)
end

local checked = {}
for k, id in ipairs(ids) do
  if deleted == limit then break end
  local row = rows[id]
  checked[id] = true
  if not row then
    if single[id] then call('ZREM', OLD, id) end
  elseif single[id] or row.expires_at == scores[k] then    -- otherwise the id belongs to another list
    if needed[id] then
      if not single[id] then call('ZADD', OLD, num(scores[k]), id) end
      skipped = skipped + 1
    else
      local kept_until = awaited[id] and needed_until(id)
      if kept_until then                       -- moves it in OLD, so no prune reads it again before that time
        row = Unit.get(id)                    -- of a plain row only a part was read
        row.expires_at, rows[id] = kept_until, row
        Unit.put(row)
      else
        delete_row(row)
        rows[id] = nil
        deleted = deleted + 1
      end
    end
  end
end
Unit.write()

-- Remove from the packs the rows that were deleted, and those that OLD and ENDED list from now on.
for _, pack in ipairs(packs) do
  local ended, rest, apart = struct.unpack('>d', pack.name), {}, {}
  for _, id in ipairs(pack.ids) do
    local row = rows[id]
    if not checked[id] then
      rest[#rest + 1] = id
    elseif row and row.ended_at == ended then
      apart[#apart + 1], apart[#apart + 2] = num(-ended), id
    end
  end
  call_many('ZADD', ENDED, apart, 2)
  if #rest == 0 then
    call('HDEL', PACKS, pack.name)
    call('ZREM', PACKS_OLD, pack.name)
    call('ZREM', PACKS_ENDED, pack.name)
  elseif #rest < #pack.ids then
    call('HSET', PACKS, pack.name, cmsgpack.pack(rest))
  end
end
return { deleted, skipped, (#ids == CHECKED_MOST and deleted < limit) and '1' or '' }
