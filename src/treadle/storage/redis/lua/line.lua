-- The second half of a claim: reads the queues, writes the leases and returns the jobs.
-- Any number of jobs of other tasks may come first. `skips` has, for a priority and queue and for a set of tasks,
-- the spot (position and id) up to which the queue has no job of these tasks, so a claim for them starts there.

local looked = 0

-- The tasks with room as one name, which is a key in `skips`. nil: all tasks.
local function set_of_tasks()
  if not set and tasks then
    local names = {}
    for task in pairs(tasks) do
      if (room[task] or 1) > 0 then names[#names + 1] = task end
    end
    table.sort(names, earlier)
    set = redis.sha1hex(table.concat(names, '\0'))
  end
  return set
end

local function offset_of(list, spot)
  local at = tonumber(call('ZSCORE', list, spot[2]) or nil)
  if at == spot[1] then return call('ZRANK', list, spot[2]) + 1 end
  return (standing(list, call('ZCARD', list), spot[1], spot[2]))
end

local function skips_of(field)
  local found = call('HGET', SKIPS, field)
  return found and cmsgpack.unpack(found) or {}
end

-- Note that the first `count` jobs of a list have no task of the set. This only saves time: a full server may refuse
-- it.
local function remember(field, list, count)
  local found = call('ZRANGE', list, count - 1, count - 1, 'WITHSCORES')
  if not found[1] then return end
  local spots, n = skips_of(field), 0
  for _ in pairs(spots) do n = n + 1 end
  if n >= SETS and not spots[set_of_tasks()] then spots = {} end
  spots[set_of_tasks()] = { tonumber(found[2]), found[1] }
  skipping = true
  return type(redis.pcall('HSET', SKIPS, field, cmsgpack.pack(spots))) == 'number'
end

local passed = ask.passed or {}

-- A page of a list: ids, job values, and rows of the wanted jobs. `mixed`: the list has jobs of other tasks too, so
-- only the rows of wanted jobs are read.
local function page_of(list, offset, most, mixed, kinds)
  local ids = call('ZRANGE', list, offset, offset + most)
  local more = #ids > most
  ids[most + 1] = nil
  local bodies = fetch(JOB, ids)
  if not mixed then return ids, bodies, fetch(ROW, ids), more end
  local mine, at, raws, kind = {}, {}, {}, nil
  for k, id in ipairs(ids) do
    if not kind or sub(bodies[k], 1, kind.length) ~= kind.begin then kind = kind_of(bodies[k], kinds) end
    if wanted(id, kind.task) then mine[#mine + 1], at[#at + 1] = id, k end
  end
  for k, raw in ipairs(fetch(ROW, mine)) do raws[at[k]] = raw end
  return ids, bodies, raws, more
end

local function walk_rank(queue, rank, share, rule)
  local spot, last, from, offset, list = nil, nil, nil, 0, nil
  local field, mixed, page = rank .. ':' .. queue, false, math.min(share, 500)
  local clear, jumped, saved = true, false, 0      -- clear: all jobs before `offset` are of other tasks
  while share > 0 and looked < LOOK_MOST and aside < BLOCKED_MOST and not sated do
    -- if the limit of the queue is shut, only jobs that need no slot of it can start
    local which = rule and not A.fits('queue:' .. queue, 1, false) and 'fast' or 'line'
    list = ns .. ':' .. which .. ':' .. rank .. ':' .. queue
    if spot and ((B and B.called) or which ~= from) then offset = S.offset_behind(list, spot, last) end
    if which == 'fast' or (B and B.called) then clear = false end
    if from ~= which and passed[list] then
      clear, spot, last = false, passed[list][1], passed[list][2]
      offset = offset_of(list, passed[list])
    end
    from = which
    if B then B.called = false end
    local cut, kinds, foreign = false, {}, false
    local ids, found, raws, more = page_of(list, offset, page, mixed, kinds)
    if #ids == 0 then
      if offset == 0 and which == 'line' and not B then swept('line', queue, rank, list) end
      break
    end
    local taken, gone, kind = {}, 0, nil
    for k, id in ipairs(ids) do
      local body, raw = found[k], raws[k]
      if not kind or sub(body, 1, kind.length) ~= kind.begin then kind = kind_of(body, kinds) end
      if not wanted(id, kind.task) then
        offset, looked, foreign = offset + 1, looked + 1, true
        if not tasks or holds[id] then clear = false end
        if rule then
          local r = B.get(id)
          spot, last = r.queue_position, id
        end
      else
        local plain = kind.plain and not rule and (not raw or is_new(raw)) and not (B and B.rows[id])
        if plain and not kind.tail then prepare(kind, queue, rank) end
        if plain and (not ruled or S.lets_in(kind.limits, queue, rank, id, body, raw)) then
          lease_plain(id, body, raw, kind)
          gone, share = gone + 1, share - 1
          taken[gone] = id
          local left = room[kind.task]
          if left then
            room[kind.task] = left - 1
            if left == 1 then look_for_room() end
          end
        else
          go_slowly()
          if B.rows[id] == nil then B.rows[id] = R.read(id, body, raw) end
          local r = B.rows[id]
          spot, last = r.queue_position, id
          if S.admit(r) then
            S.lease(r, body)
            share = share - 1
          elseif r.queue_position then
            offset, looked, clear = offset + 1, looked + 1, false
          end
          cut = B.called or (rule and from == 'line' and not A.fits('queue:' .. queue, 1, false))
        end
      end
      if cut or share == 0 then break end
    end
    mixed = foreign and not cut
    page = math.min(500, mixed and (gone == 0 and 4 * page or math.max(2 * share, 10)) or share)
    if gone > 0 then leave_line(queue, rank, list, taken, kinds, not more) end
    if not more and not cut then break end
    if foreign and clear and not cut and share > 0 and jumped ~= set_of_tasks() then
      jumped = set
      local skip = skips_of(field)[set]
      if skip then                       -- skip the jobs that an earlier claim for the same tasks has skipped
        offset, spot, last = math.max(offset, offset_of(list, skip)), skip[1], skip[2]
        mixed, page = false, math.min(share, 500)
      end
      saved = skip and offset or 0
    end
  end
  if B and B.called then clear = false end
  local known = clear and jumped and jumped == set_of_tasks() and offset - saved >= SAVE and not asked
    and remember(field, list, offset)
  if looked >= LOOK_MOST and n == 0 and not known and offset > 0 then
    local found = call('ZRANGE', list, offset - 1, offset - 1, 'WITHSCORES')
    passed[list] = found[1] and { tonumber(found[2]), found[1] } or nil
  end
  return share
end

local function walk(queue, share)
  local rule = ruled and A.rule('queue:' .. queue)
  share = math.min(share, limit - n)
  local ranks, from = ns .. ':lines:' .. queue, nil
  while share > 0 and aside < BLOCKED_MOST do
    -- Read the first rank by index: for a range by score the server does not know the length of its answer in advance,
    -- and glibc's allocator takes 10 us to reserve the space.
    local rank = (from and call('ZRANGEBYSCORE', ranks, from, '+inf', 'LIMIT', 0, 1) or call('ZRANGE', ranks, 0, 0))[1]
    if not rank then break end
    share = walk_rank(queue, rank, share, rule)
    from = '(' .. -rank
  end
  return share
end

if #ask.ids > 0 then
  go_slowly()
  S.pick(ask.ids)
else
  local through = {}                     -- queues read to their end; the per-row path may queue blocked jobs again
  for _, each in ipairs(ask.queues) do through[each[1]] = walk(each[1], each[2]) > 0 and looked < LOOK_MOST end
  for _, each in ipairs(ask.queues) do
    if B or not through[each[1]] then walk(each[1], limit) end
  end
end
if B then
  for key in pairs(A.spent) do A.set_opening(key) end
  A.write()
end
if hot > 0 then
  many('HSET', ROW, hot_set, 2)
  many('ZADD', DUE, hot_due, 2)
  many('SADD', HELD, hot_ids)
end
if B then B.finish() end
if ask.hand_off and not asked then
  local address, seconds = ask.hand_off[1], ask.hand_off[2]
  local words = ns .. ':ask:' .. address
  if n > 0 or seconds <= 0 then
    call('DEL', words)
  else                                   -- store the request for a hand-off (ask.lua)
    local ends, keep = now + seconds, math.ceil(seconds * 1000)
    call('SET', words, struct.pack('>d', ends) .. ARGV[#ARGV], 'PX', keep)
    for _, each in ipairs(ask.queues) do
      local asking = ns .. ':asking:' .. each[1]
      call('ZREMRANGEBYSCORE', asking, '-inf', num(now))
      call('ZADD', asking, num(ends), address)
      call('PEXPIRE', asking, keep)
    end
  end
end
for k = 1, n do
  local r = rows[k]
  if type(r) == 'table' then bodies[k], rows[k] = bodies[k] or call('HGET', JOB, r.id), R.bytes(r) end
end
if n == 0 and looked >= LOOK_MOST then
  local list = answer(2)
  list[4] = cmsgpack.pack(passed)
  return list
end
return answer(aside < BLOCKED_MOST and 0 or 2)
