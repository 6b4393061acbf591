-- ARGV: now, how many rows to delete at most, how many to skip, '1' to advance due rows first.
-- Returns { rows deleted, rows that the next call must skip, '1' if there may be more }.
if away() then return { 0, 0, '' } end
slowly()
make_way()
local LOOK = 500                         -- rows that one call checks
if ARGV[4] == '1' then
  T.advance_due()
  A.write()
  B.finish()
end
local limit, past = tonumber(ARGV[2]), tonumber(ARGV[3])
local went, stay = 0, 0

-- the first rows of OLD and of packs, as one list
local all, alone, packs = gathered(), {}, {}
local found = call('ZRANGEBYSCORE', OLD, '-inf', num(now), 'WITHSCORES', 'LIMIT', past, LOOK)
for k = 1, #found, 2 do
  gather(all, tonumber(found[k + 1]), found[k])
  alone[found[k]] = true
end
do
  local enough, moment = all.n + LOOK, nil
  unpacked(PACKS_OLD, 0,
    function(score) return score <= now and (all.n < enough or score == moment) end,
    function(score, ids, name)
      packs[#packs + 1], moment = { name = name, ids = ids }, score
      for _, id in ipairs(ids) do gather(all, score, id) end
    end)
end
local ids, scores = first_of(all, LOOK)

-- Read their rows. Of a plain one without a tail only queue and task are read, for the counts: it has no key, no
-- upstreams and no other workflow than its own. A failed one is read whole: the list of failed jobs that has it is named
-- after its queue.
local PART = 50                          -- jobs in memory at a time, because their arguments may be large
local rows, raws, whole, plain, nothing = {}, fetch(ROW, ids), {}, {}, {}
for k, id in ipairs(ids) do
  local raw = raws[k]
  if raw and byte(raw) >= SUCCEEDED and byte(raw) ~= FAILED and byte(raw, 2) == PLAIN then
    local ended, expires = struct.unpack('>dd', raw, 99)
    local r = { id = id, after = nothing, state = byte(raw), created_at = struct.unpack('>d', raw, 43), ended_at = ended,
                expires_at = expires }
    rows[id], r.v, plain[#plain + 1] = r, r, id
  else
    whole[#whole + 1] = id
  end
end
do
  local jobs = {}                        -- by queue and task
  for from = 1, #plain, PART do
    local some = { unpack(plain, from, math.min(from + PART - 1, #plain)) }
    for k, body in ipairs(call('HMGET', JOB, unpack(some))) do
      if body then
        local tl, ql = struct.unpack('>HH', body, 20)
        local names = sub(body, 20, 23) .. sub(body, 28, 27 + tl + ql)
        jobs[names] = jobs[names] or { task = sub(body, 28, 27 + tl), queue = sub(body, 28 + tl, 27 + tl + ql) }
        rows[some[k]].j = jobs[names]
      else
        rows[some[k]] = nil
      end
    end
  end
end
B.load(whole)
for _, id in ipairs(whole) do rows[id] = B.get(id) end

-- the rows that an unfinished row waits for, or whose workflow has an unfinished row
local needed = {}
do
  local roots = {}
  for k, id in ipairs(ids) do
    local root = rows[id] and rows[id].j.root
    roots[k] = root and root ~= '' and root or id
  end
  local named, unfinished = fetch(ns .. ':needs', ids), fetch(ns .. ':roots', roots)
  for k, id in ipairs(ids) do
    local first = roots[k] ~= id and B.get(roots[k])
    needed[id] = named[k] or unfinished[k] or (first and first.state < SUCCEEDED and (first.j.root or '') == '')
  end
end

-- The rows that have edges: jobs with a row wait for them, or have waited. Most storages have none, and no plain row is
-- checked by itself.
local awaited = {}
if #ids > 0 and call('EXISTS', PARENTS) == 1 then
  for k, is in ipairs(call('SMISMEMBER', PARENTS, unpack(ids))) do awaited[ids[k]] = is == 1 end
end

-- Jobs that were cancelled because of an upstream, or failed because of a child, may be reopened; then they wait again
-- for all that they name. Until their own retention is over, those rows stay too. `expiry` is read from what is
-- stored, which changes only after the last look, so the order of the rows does not matter.
local expiry, ups_of = {}, {}            -- by id: when a failed or cancelled row expires; what it waits for if reopened

local function waits_again(id)
  if not ups_of[id] then
    local r, ups = B.get(id), {}
    if r and r.reason == (r.state == CANCELLED and 'upstream' or 'children') then
      for _, up in ipairs(r.after) do ups[up] = true end
    end
    ups_of[id] = ups
  end
  return ups_of[id]
end

-- the latest end of the retention of the jobs that may wait for this row again; nil if there are none
local function needed_until(up)
  local downs, unread, latest = E.downs(up), {}, now
  for _, down in ipairs(downs) do
    if expiry[down] == nil then unread[#unread + 1] = down end
  end
  for from = 1, #unread, PART do
    local some = { unpack(unread, from, math.min(from + PART - 1, #unread)) }
    for k, raw in ipairs(call('HMGET', ROW, unpack(some))) do
      local state = raw and byte(raw)
      expiry[some[k]] = (state == FAILED or state == CANCELLED) and (struct.unpack('>d', raw, 107))
    end
  end
  for _, down in ipairs(downs) do
    if expiry[down] and expiry[down] > latest and waits_again(down)[up] then latest = expiry[down] end
  end
  return latest > now and latest or nil
end

local function forget(r)
  E.drop_key(r)
  for _, up in ipairs(r.after) do E.drop_edge(up, r.id) end
  for _, up in ipairs(r.ups or nothing) do E.drop_edge(up, r.id) end
  if r.j.key then
    local behind = call('HGET', ns .. ':behind', r.id)
    if behind then
      E.drop_edge(behind, r.id)
      call('HDEL', ns .. ':behind', r.id)
    end
  end
  B.forget(r)
end

local looked = {}
for k, id in ipairs(ids) do
  if went == limit then break end
  local r = rows[id]
  looked[id] = true
  if not r then
    if alone[id] then call('ZREM', OLD, id) end
  elseif alone[id] or r.expires_at == scores[k] then    -- otherwise another list has it
    if needed[id] then
      if not alone[id] then call('ZADD', OLD, num(scores[k]), id) end
      stay = stay + 1
    else
      local till = awaited[id] and needed_until(id)
      if till then                       -- OLD has it later, so until then no prune reads it again
        r = B.get(id)                    -- of a plain one only a part was read
        r.expires_at, rows[id] = till, r
        B.put(r)
      else
        forget(r)
        rows[id] = nil
        went = went + 1
      end
    end
  end
end
B.write()

-- Remove from the packs the rows that were deleted, and those that OLD and ENDED list from now on.
for _, pack in ipairs(packs) do
  local ended, rest, apart = struct.unpack('>d', pack.name), {}, {}
  for _, id in ipairs(pack.ids) do
    local r = rows[id]
    if not looked[id] then
      rest[#rest + 1] = id
    elseif r and r.ended_at == ended then
      apart[#apart + 1], apart[#apart + 2] = num(-ended), id
    end
  end
  many('ZADD', ENDED, apart, 2)
  if #rest == 0 then
    call('HDEL', PACKS, pack.name)
    call('ZREM', PACKS_OLD, pack.name)
    call('ZREM', PACKS_ENDED, pack.name)
  elseif #rest < #pack.ids then
    call('HSET', PACKS, pack.name, cmsgpack.pack(rest))
  end
end
return { went, stay, (#ids == LOOK and went < limit) and '1' or '' }
