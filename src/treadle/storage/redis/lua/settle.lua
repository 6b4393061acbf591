-- ARGV: now, then for each outcome: id, words, number of its follow-up jobs, and id body of each; at the end the claim,
-- if the script also makes one.
-- words: 's' state version attempt keep | tail of the row   -- a plain ending
--    or: 'f' | the outcome as msgpack
-- Returns { number, status, what, other, ... } for the outcomes that were not simply applied. Status 'left': the job is
-- in another shard; 'cross': the workflow `what` must first move to the first shard.
do
  quiet = call('EXISTS', MOVE, PARENTS, RULES, OPENS, RECOUNT) == 0
  local mark = away(CLOSING)
  if mark then return mark end
end
local said = {}

local function refuse(number, status, what, other)
  local n = #said
  said[n + 1], said[n + 2], said[n + 3], said[n + 4] = number, status, what or '', other or ''
end

local ids, words, at, times, total = {}, {}, {}, {}, 0
do
  local k, width = 2, #ARGV
  while k < width do
    local id = ARGV[k]
    total = total + 1
    ids[total], words[total], at[total], times[id] = id, ARGV[k + 1], k + 2, (times[id] or 0) + 1
    k = k + 3 + 2 * ARGV[k + 2]
  end
end

-- --- the bulk path: plain jobs that run, end, and have no job that waits for them, with one outcome each
local done = {}

-- the jobs that others wait for
local function awaited()
  local found = {}
  if not quiet and call('EXISTS', PARENTS) == 1 then
    for at = 1, total, STEP do
      local some = call('SMISMEMBER', PARENTS, unpack(ids, at, math.min(at + STEP - 1, total)))
      for k, is in ipairs(some) do found[at + k - 1] = is == 1 end
    end
  end
  return found
end

local HEAVY = 10000                      -- bytes of a result above which a full server refuses it

-- The common parts of rows that end alike: moments from due_at on, rank, lengths, worker, queue, limits, task. `ids`:
-- those that end now; nil if one of the limits has blocked jobs, which this path does not queue, or without a task: an
-- earlier version has written the row. `names`: queue and task. `others`: how many fail or are cancelled, by state.
local anybody_aside
local function group_of(rest)
  local wl, ql = struct.unpack('>HH', rest, 51)
  local worker, queue = 55, 55 + wl
  local group = { moments = NONE_BYTES .. sub(rest, 9, 24) .. NOW_BYTES .. NOW_BYTES, middle = sub(rest, 49, 54 + wl + ql),
                  worker = sub(rest, worker, queue - 1), queue = 'queue:' .. sub(rest, queue, queue + ql - 1), limits = {},
                  ids = {}, names = nil }
  local task
  if byte(rest, queue + ql) == 144 then          -- no limits
    task = sub(rest, queue + ql + 4)
  elseif #rest >= queue + ql then
    group.limits, task = cmsgpack.unpack(sub(rest, queue + ql))
    if anybody_aside == nil then anybody_aside = call('EXISTS', ns .. ':asides') == 1 end
    for _, cost in ipairs(anybody_aside and group.limits or {}) do
      if call('SISMEMBER', ns .. ':asides', cost[1]) == 1 then group.ids = nil end
    end
  end
  if task then group.names = sub(rest, queue, queue + ql - 1) .. '\0' .. task else group.ids = nil end
  return group
end

-- The common parts of equal outcomes: the start that the row must have, the start and the tail that it gets.
local function wording_of(word)
  if byte(word) ~= 115 then return {} end
  local keep, tail = sub(word, 11, 18), sub(word, 19)
  local version = struct.pack('>I4', struct.unpack('>I4', word, 3) + 1)
  return { before = string.char(RUNNING, PLAIN) .. sub(word, 3, 6), attempt = sub(word, 7, 10), tail = tail,
           after = sub(word, 2, 2) .. (tail == '' and '\1' or '\5') .. version .. '\0\0\0\0',
           keep = keep ~= NONE_BYTES and keep, failed = byte(word, 2) == FAILED, state = byte(word, 2) }
end

-- for rows kept this many seconds: expires_at as bytes and as a score, and their ids
local function until_of(keep)
  local moment = now + math.max(struct.unpack('>d', keep), ${KEEP_LEAST})
  return { struct.pack('>d', moment), num(moment), {} }
end

-- Jobs with the same ended_at and expires_at become a pack (packs.lua). Single entries in two lists took 3 of the 11 us
-- that a job cost the server while a million ended, and half of the added memory.
local function list(u, ending)
  local ids = u[3]
  if #ids > 1 then
    local packs, name = ns .. ':packs', NOW_BYTES .. u[1]
    if call('HSETNX', packs, name, cmsgpack.pack(ids)) == 0 then     -- an earlier call at the same moment
      local all = cmsgpack.unpack(call('HGET', packs, name))
      for _, id in ipairs(ids) do all[#all + 1] = id end
      call('HSET', packs, name, cmsgpack.pack(all))
    end
    call('ZADD', packs .. ':old', u[2], name)
    call('ZADD', packs .. ':ended', ending, name)
  else
    call('ZADD', OLD, u[2], ids[1])
    call('ZADD', ENDED, ending, ids[1])
  end
end

-- List the jobs that failed, by queue; see kinds.lua.
local function list_failed(failed)
  for queue, entries in pairs(failed) do
    local name = 'failed:' .. sub(queue, 7)            -- `queue` begins with "queue:"
    many('ZADD', ns .. ':of:' .. name, entries, 2)
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
local function give_back(groups)
  local limited = {}
  for _, group in pairs(groups) do
    local n = group.ids and #group.ids or 0
    if n > 0 then
      count_ended(group)
      many('SREM', ns .. ':held:' .. group.worker, group.ids)
      owe(group.queue, -n)
      for _, cost in ipairs(group.limits) do
        limited[#limited + 1] = cost[1]
        owe(cost[1], -n * cost[2])
      end
    end
  end
  many('ZREM', OPENS, limited)           -- these limits have no blocked jobs
end

do
  local raws, parents = fetch(ROW, ids), awaited()
  local set, due, topics, n = {}, {}, {}, 0
  local wordings, untils, groups, failed, heaviest = {}, {}, {}, {}, 0
  local ending, watch = num(-now), recount()
  for k = 1, total do
    local raw, id, w = raws[k], ids[k], wordings[words[k]]
    if not w then
      w = wording_of(words[k])
      wordings[words[k]] = w
    end
    if raw and sub(raw, 1, 6) == w.before and times[id] == 1 and not parents[k] then
      local rest = sub(raw, 67)
      local group = groups[rest]
      if not group then
        group = group_of(rest)
        groups[rest] = group
      end
      if group.ids then
        local keep = w.keep or (w.failed and sub(raw, 35, 42) or sub(raw, 27, 34))
        local u = untils[keep]
        if not u then
          u = until_of(keep)
          untils[keep] = u
        end
        n = n + 1
        done[k] = true
        if #w.tail > heaviest then heaviest = #w.tail end
        group.ids[#group.ids + 1] = id
        set[2 * n - 1], set[2 * n] = id, w.after .. sub(raw, 11, 14) .. w.attempt .. sub(raw, 19, 66) .. group.moments
          .. u[1] .. group.middle .. w.tail
        due[n], topics[n] = id, 'job:' .. id
        u[3][#u[3] + 1] = id
        if w.state ~= SUCCEEDED then
          group.others = group.others or {}
          group.others[w.state] = (group.others[w.state] or 0) + 1
        end
        if watch then
          local names = ':' .. group.names
          watch.follow((struct.unpack('>d', raw, 43)), id, 'running' .. names, STATES[w.state] .. names)
        end
        if w.failed then
          local entries = failed[group.queue] or {}
          failed[group.queue] = entries
          entries[#entries + 1], entries[#entries + 2] = ending, id
        end
      end
    end
  end
  if n > 0 then
    -- A full server accepts endings (see `make_way`), but refuses large results: then HSET comes first.
    if heaviest > HEAVY then many('HSET', ROW, set, 2) end
    many('ZREM', DUE, due)
    if heaviest <= HEAVY then many('HSET', ROW, set, 2) end
    for _, u in pairs(untils) do list(u, ending) end
    list_failed(failed)
    give_back(groups)
    hint(ns .. ':ends', cmsgpack.pack(topics))
  end
  if n == total then return said end
end
slowly()
local function given(x) if x then return x end end

local function outcome(words)
  if byte(words) == 102 then return cmsgpack.unpack(sub(words, 2)) end
  local out = { state = byte(words, 2), version = (struct.unpack('>i4', words, 3)), attempt = (struct.unpack('>I4', words, 7)),
                keep = R.maybe((struct.unpack('>d', words, 11))), delay = 0, function_done = false, checkpoints = {}, after = {} }
  if #words > 18 then
    local t = cmsgpack.unpack(sub(words, 19))
    out.result, out.value, out.error, out.reason = given(t[3]), given(t[4]), given(t[5]), given(t[6])
  end
  return out
end

-- whether the row has all checkpoints of an outcome; see row_rules.repeats
local function remembers(out, r)
  local has, wanted = {}, {}
  for _, pair in ipairs(r.checkpoints) do has[pair[1]] = pair[2] end
  for _, pair in ipairs(out.checkpoints) do wanted[pair[1]] = pair[2] end
  for name, value in pairs(wanted) do
    if has[name] ~= value and sub(name, 1, 8) ~= 'treadle:' then return false end
  end
  return true
end

-- whether this same outcome has been applied and the row is unchanged since
local function repeats(out, r)
  if r.version ~= out.version + 1 or r.state == RUNNING then return false end
  local act = O.act_in(out.checkpoints)
  if act then return O.act_in(r.checkpoints) == act end
  local waited = out.state == WAITING and r.state == READY and r.function_done == out.function_done
  return (r.state == out.state or waited) and r.attempt == out.attempt and r.result == out.result
    and r.value == out.value and r.error == out.error and r.reason == out.reason and remembers(out, r)
end

-- the new jobs that the job of this outcome would wait for, directly or through others
local function reached(out, jobs, answers, fresh)
  local ups, found, look = {}, {}, {}
  for _, new in ipairs(jobs) do
    if fresh[new[1]] then ups[new[1]] = new[3].after end
  end
  for _, up in ipairs(out.after) do look[#look + 1] = up end
  while #look > 0 do
    local id = table.remove(look)
    if ups[id] and not found[id] then
      found[id] = true
      for _, up in ipairs(ups[id]) do look[#look + 1] = answers[up] or up end
    end
  end
  return found
end

-- Of the rows returned for follow-ups of this outcome, and those that follow-ups name: the ones that are its job or
-- wait for it, directly or through others. nil and what is wrong if a follow-up that the job waits for would wait for
-- such a row. See row_rules.refuse_circle.
local function circle_of(out, jobs, answers)
  local circle, fresh, waiting = {}, {}, nil
  if out.state ~= WAITING then return circle end
  local function look(row)
    waiting = waiting or E.waiting_for(out.id)
    if waiting[row] then circle[row] = true end
  end
  for _, new in ipairs(jobs) do
    local id = new[1]
    if answers[id] == id and not B.get(id) then fresh[id] = true end
  end
  for _, new in ipairs(jobs) do
    if not fresh[answers[new[1]]] then look(answers[new[1]]) end
    for _, up in ipairs(fresh[new[1]] and new[3].after or {}) do
      if not answers[up] then look(up) end
    end
  end
  if not next(circle) then return circle end
  local behind = reached(out, jobs, answers, fresh)
  for _, new in ipairs(jobs) do
    if behind[new[1]] then
      for _, up in ipairs(new[3].after) do
        local row = answers[up] or up
        if circle[row] then return nil, new[1], row .. '\0' .. out.id end
      end
    end
  end
  return circle
end

-- Wait for the jobs that the outcome names, or the rows returned for them.
local function wait(r, out, answers, circle)
  local after, seen = {}, {}
  for _, up in ipairs(out.after) do
    local row = answers[up] or up
    if not seen[up] and not circle[row] then
      seen[up] = true
      after[#after + 1] = row
    end
  end
  local ups = r.ups or {}
  for _, up in ipairs(r.after) do ups[#ups + 1] = up end
  if #ups > 0 then r.ups = ups end
  local due = not r.function_done and r.deadline_at or nil
  if out.delay > 0 then due = due and math.min(due, now + out.delay) or now + out.delay end
  r.state, r.after, r.pending, r.failures_allowed, r.queue_position, r.blocked_on, r.due_at =
    WAITING, after, E.needed(out.required, after), out.failures_allowed, nil, nil, due
  B.put(r)
  E.watch_ups(r, after)
end

local function apply(r, out, jobs, answers, circle)
  local was_running = r.state == RUNNING
  r.attempt, r.result, r.value, r.error, r.reason = out.attempt, out.result, out.value, out.error, out.reason
  r.checkpoints, r.updated_at, r.function_done = O.merged(r.checkpoints, out.checkpoints), now, r.function_done or out.function_done
  if out.note then r.note = out.note end
  if out.state >= SUCCEEDED then
    if not was_running then r.worker = nil end
    E.finish(r, out.state, out.reason, out.error, out.keep)
    E.store_all(jobs, answers)
    return
  end
  if r.result then B.topics['job:' .. r.id] = true end
  r.version, r.worker, r.queue_position, r.blocked_on, r.due_at, r.state = r.version + 1, nil, nil, nil, nil, WAITING
  B.put(r)
  E.store_all(jobs, answers, r.id)
  if out.state == READY and out.delay <= 0 then
    B.join(r, now)
  elseif out.state == READY then
    E.schedule(r, now + out.delay)
  else
    wait(r, out, answers, circle)
  end
  A.unblock_for(r)
end

-- see row_rules.may_wait
local function may_wait(out, r, above)
  if E.within(out.reach, above.j.queue) then return true end
  for _, up in ipairs(r.after) do
    if up == above.id then return true end
  end
  return false
end

-- Refuse an ending that names failed jobs if one of them is open again or has succeeded since, or if its job has not
-- waited for it. Return whether it was refused.
local function overtaken(k, r, out)
  local waited = {}
  for _, up in ipairs(r.after) do waited[up] = true end
  for _, up in ipairs(out.after) do
    local above = B.get(up)
    if not waited[up] then
      refuse(k, 'unknown', up, r.id)
      return true
    elseif above and above.state <= SUCCEEDED then
      refuse(k, 'stale', up .. ' is ' .. STATES[above.state])
      return true
    end
  end
  return false
end

local crossed = {}                      -- workflows that must move to the first shard before their outcomes are applied

local function settle(k)
  local id = ids[k]
  local r, out = B.get(id), outcome(words[k])
  if not r then
    if has_left({ id }) then return refuse(k, 'left') end
    return refuse(k, 'stale', 'there is no such job')
  end
  if not E.within(out.reach, r.j.queue) then return refuse(k, 'stale', 'there is no such job') end
  if repeats(out, r) then return end
  if r.version ~= out.version then
    return refuse(k, 'stale', 'it is ' .. STATES[r.state] .. ' at version ' .. r.version)
  end
  if r.state >= SUCCEEDED then
    local status, what, other = O.after_the_end(r, out)
    if status ~= 'applied' then refuse(k, status, what, other) end
    return
  end
  local final = out.state >= SUCCEEDED
  if final and #out.after > 0 and overtaken(k, r, out) then return end
  local ups = final and {} or out.after
  local jobs, from = {}, at[k]
  for n = 1, tonumber(ARGV[from]) do jobs[n] = { ARGV[from + 2 * n - 1], ARGV[from + 2 * n] } end
  if SPREAD then
    local root = E.root_of(r)
    crossed[root] = crossed[root] or E.crosses(r, ups, jobs)
    if crossed[root] then return refuse(k, 'cross', root) end
  end
  local answers, wrong, one, other = E.answers(jobs, final and id or nil)
  if not answers then return refuse(k, wrong, one, other) end
  for _, up in ipairs(ups) do
    local above = not answers[up] and B.get(up)
    if not answers[up] and not (above and may_wait(out, r, above)) then return refuse(k, 'unknown', up, id) end
  end
  out.id = id
  local circle, wrong, one = circle_of(out, jobs, answers)
  if not circle then return refuse(k, 'circle', wrong, one) end
  if r.state == RUNNING and r.worker and (out.reason == 'asked' or out.reason == 'superseded') then
    B.topics['worker:' .. (string.match(r.worker, '^(.+)#[^#]*$') or r.worker)] = true
  end
  apply(r, out, jobs, answers, circle)
  E.count_endings()
end

local slow = {}
for k = 1, total do
  if not done[k] then slow[#slow + 1] = ids[k] end
end
B.load(slow)
for k = 1, total do
  if not done[k] then settle(k) end
end
A.write()
B.finish()
return said
