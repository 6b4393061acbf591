-- The second half of a claim: reads the queues, writes the leases and returns the jobs.
-- Any number of jobs of other tasks may come first. `skips` has, for a priority and queue and for a set of tasks,
-- the spot (position and id) up to which the queue has no job of these tasks, so a claim for them starts there.

local passed_count = 0

-- Returns one name for the set of tasks that have free slots; `skips` uses it as a key. nil: all tasks.
local function set_of_tasks()
  if not task_set and tasks then
    local names = {}
    for task in pairs(tasks) do
      if (room[task] or 1) > 0 then names[#names + 1] = task end
    end
    table.sort(names, earlier)
    task_set = redis.sha1hex(table.concat(names, '\0'))
  end
  return task_set
end

local function offset_of(list, spot)
  local score = tonumber(call('ZSCORE', list, spot[2]) or nil)
  if score == spot[1] then return call('ZRANK', list, spot[2]) + 1 end
  return (members_before(list, call('ZCARD', list), spot[1], spot[2]))
end

local function read_skips(field)
  local stored = call('HGET', SKIPS, field)
  return stored and cmsgpack.unpack(stored) or {}
end

-- Note that the first `count` jobs of a list have no task of the set. This only saves time: a full server may refuse
-- it.
local function save_skip(field, list, count)
  local last = call('ZRANGE', list, count - 1, count - 1, 'WITHSCORES')
  if not last[1] then return end
  local spots, n = read_skips(field), 0
  for _ in pairs(spots) do n = n + 1 end
  if n >= SETS_MOST and not spots[set_of_tasks()] then spots = {} end
  spots[set_of_tasks()] = { tonumber(last[2]), last[1] }
  has_skips = true
  return type(redis.pcall('HSET', SKIPS, field, cmsgpack.pack(spots))) == 'number'
end

local passed_spots = request.passed or {}

-- A page of a list: ids, job values, and rows of the wanted jobs. `is_mixed`: the list has jobs of other tasks too, so
-- only the rows of wanted jobs are read.
local function read_page(list, offset, size, is_mixed, kinds)
  local ids = call('ZRANGE', list, offset, offset + size)
  local has_more = #ids > size
  ids[size + 1] = nil
  local bodies = fetch(JOB, ids)
  if not is_mixed then return ids, bodies, fetch(ROW, ids), has_more end
  local wanted_ids, places, raws, kind = {}, {}, {}, nil
  for k, id in ipairs(ids) do
    if not kind or sub(bodies[k], 1, kind.length) ~= kind.begin then kind = kind_of(bodies[k], kinds) end
    if wanted(id, kind.task) then wanted_ids[#wanted_ids + 1], places[#places + 1] = id, k end
  end
  for k, stored_row in ipairs(fetch(ROW, wanted_ids)) do raws[places[k]] = stored_row end
  return ids, bodies, raws, has_more
end

local function claim_rank(queue, rank, share, rule)
  local spot, last, previous_list, offset, list = nil, nil, nil, 0, nil
  local field, is_mixed, page = rank .. ':' .. queue, false, math.min(share, 500)
  local only_others, jumped, saved = true, false, 0      -- only_others: all jobs before `offset` are of other tasks
  while share > 0 and passed_count < PASSED_MOST and blocked_count < BLOCKED_MOST and not no_room do
    -- If the limit of the queue is shut, only jobs that need no slot of it can start.
    local list_kind = rule and not Admission.fits('queue:' .. queue, 1, false) and 'fast' or 'line'
    list = ns .. ':' .. list_kind .. ':' .. rank .. ':' .. queue
    if spot and ((Unit and Unit.unblocked) or list_kind ~= previous_list) then
      offset = Leasing.offset_after(list, spot, last)
    end
    if list_kind == 'fast' or (Unit and Unit.unblocked) then only_others = false end
    if previous_list ~= list_kind and passed_spots[list] then
      only_others, spot, last = false, passed_spots[list][1], passed_spots[list][2]
      offset = offset_of(list, passed_spots[list])
    end
    previous_list = list_kind
    if Unit then Unit.unblocked = false end
    local must_reread, kinds, has_others = false, {}, false
    local ids, bodies, raws, has_more = read_page(list, offset, page, is_mixed, kinds)
    if #ids == 0 then
      if offset == 0 and list_kind == 'line' and not Unit then drop_if_empty('line', queue, rank, list) end
      break
    end
    local taken, claimed_count, kind = {}, 0, nil
    for k, id in ipairs(ids) do
      local body, raw = bodies[k], raws[k]
      if not kind or sub(body, 1, kind.length) ~= kind.begin then kind = kind_of(body, kinds) end
      if not wanted(id, kind.task) then
        offset, passed_count, has_others = offset + 1, passed_count + 1, true
        if not tasks or excluded[id] then only_others = false end
        if rule then
          local row = Unit.get(id)
          spot, last = row.queue_position, id
        end
      else
        local plain = kind.plain and not rule and (not raw or is_new(raw)) and not (Unit and Unit.rows[id])
        if plain and not kind.tail then prepare_kind(kind, queue, rank) end
        if plain and (not has_rules or Leasing.admit_plain(kind.limits, queue, rank, id, body, raw)) then
          lease_plain(id, body, raw, kind)
          claimed_count, share = claimed_count + 1, share - 1
          taken[claimed_count] = id
          local free = room[kind.task]
          if free then
            room[kind.task] = free - 1
            if free == 1 then update_room() end
          end
        else
          use_row_path()
          if Unit.rows[id] == nil then Unit.rows[id] = Row.read(id, body, raw) end
          local row = Unit.rows[id]
          spot, last = row.queue_position, id
          if Leasing.admit(row) then
            Leasing.lease(row, body)
            share = share - 1
          elseif row.queue_position then
            offset, passed_count, only_others = offset + 1, passed_count + 1, false
          end
          must_reread = Unit.unblocked or (rule and previous_list == 'line'
            and not Admission.fits('queue:' .. queue, 1, false))
        end
      end
      if must_reread or share == 0 then break end
    end
    is_mixed = has_others and not must_reread
    page = math.min(500, is_mixed and (claimed_count == 0 and 4 * page or math.max(2 * share, 10)) or share)
    if claimed_count > 0 then leave_queue(queue, rank, list, taken, kinds, not has_more) end
    if not has_more and not must_reread then break end
    if has_others and only_others and not must_reread and share > 0 and jumped ~= set_of_tasks() then
      jumped = task_set
      local skip = read_skips(field)[task_set]
      if skip then                       -- skip the jobs that an earlier claim for the same tasks has skipped
        offset, spot, last = math.max(offset, offset_of(list, skip)), skip[1], skip[2]
        is_mixed, page = false, math.min(share, 500)
      end
      saved = skip and offset or 0
    end
  end
  if Unit and Unit.unblocked then only_others = false end
  local known = only_others and jumped and jumped == set_of_tasks() and offset - saved >= SKIP_WORTH and not open_claim
    and save_skip(field, list, offset)
  if passed_count >= PASSED_MOST and n == 0 and not known and offset > 0 then
    local bodies = call('ZRANGE', list, offset - 1, offset - 1, 'WITHSCORES')
    passed_spots[list] = bodies[1] and { tonumber(bodies[2]), bodies[1] } or nil
  end
  return share
end

local function claim_queue(queue, share)
  local rule = has_rules and Admission.rule('queue:' .. queue)
  share = math.min(share, limit - n)
  local ranks, from = ns .. ':lines:' .. queue, nil
  while share > 0 and blocked_count < BLOCKED_MOST do
    -- Read the first rank by index: for a range by score the server cannot know the length of its answer, and glibc's
    -- allocator takes 10 us to reserve the space.
    local rank = (from and call('ZRANGEBYSCORE', ranks, from, '+inf', 'LIMIT', 0, 1) or call('ZRANGE', ranks, 0, 0))[1]
    if not rank then break end
    share = claim_rank(queue, rank, share, rule)
    from = '(' .. -rank
  end
  return share
end

if #request.ids > 0 then
  use_row_path()
  Leasing.claim_ids(request.ids)
else
  local read_to_end = {}                     -- queues read to their end; the per-row path may queue blocked jobs again
  for _, queue_share in ipairs(request.queues) do
    read_to_end[queue_share[1]] = claim_queue(queue_share[1], queue_share[2]) > 0 and passed_count < PASSED_MOST
  end
  for _, queue_share in ipairs(request.queues) do
    if Unit or not read_to_end[queue_share[1]] then claim_queue(queue_share[1], limit) end
  end
end
if Unit then
  for key in pairs(Admission.spent) do Admission.note_opening(key) end
  Admission.write()
end
if plain_count > 0 then
  call_many('HSET', ROW, plain_rows, 2)
  call_many('ZADD', DUE, plain_due, 2)
  call_many('SADD', HELD, plain_ids)
end
if Unit then Unit.finish() end
if request.hand_off and not open_claim then
  local address, seconds = request.hand_off[1], request.hand_off[2]
  local ask_key = ns .. ':ask:' .. address
  if n > 0 or seconds <= 0 then
    call('DEL', ask_key)
  else                                   -- store the request for a hand-off (open_claim.lua)
    local ends, keep = now + seconds, math.ceil(seconds * 1000)
    call('SET', ask_key, struct.pack('>d', ends) .. ARGV[#ARGV], 'PX', keep)
    for _, queue_share in ipairs(request.queues) do
      local asking = ns .. ':asking:' .. queue_share[1]
      call('ZREMRANGEBYSCORE', asking, '-inf', num(now))
      call('ZADD', asking, num(ends), address)
      call('PEXPIRE', asking, keep)
    end
  end
end
for k = 1, n do
  local row = rows[k]
  if type(row) == 'table' then
    bodies[k], rows[k] = bodies[k] or call('HGET', JOB, row.id), Row.whole(row.id, Row.bytes(row))
  end
end
if n == 0 and passed_count >= PASSED_MOST then
  local list = answer(2)
  list[4] = cmsgpack.pack(passed_spots)
  return list
end
return answer(blocked_count < BLOCKED_MOST and 0 or 2)
