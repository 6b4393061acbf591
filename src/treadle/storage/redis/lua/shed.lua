-- Makes room in bounded queues before new jobs are stored, like storage/machine/bounds.py.
local make_room
if bounded then
  local LOOK = ${SHED_LOOK}
  local PAGE = 50

  -- An iterator over the ids of the queued jobs of a queue: from the last in queue order, or from the first by position
  -- and id. The second value is their rank.
  local function outermost(queue, lowest)
    local ranks = call(lowest and 'ZREVRANGE' or 'ZRANGE', ns .. ':lines:' .. queue, 0, -1)
    local pages = {}
    for k, rank in ipairs(ranks) do
      pages[k] = { list = ns .. ':line:' .. rank .. ':' .. queue, rank = tonumber(rank), from = 0, at = PAGE * 2 + 1 }
    end
    local function head(page)
      if page.at > PAGE * 2 then
        local verb = lowest and 'ZREVRANGE' or 'ZRANGE'
        page.ids, page.at = call(verb, page.list, page.from, page.from + PAGE - 1, 'WITHSCORES'), 1
        page.from = page.from + PAGE
      end
      return page.ids[page.at], tonumber(page.ids[page.at + 1])
    end
    return function()
      local best, id, position
      for _, page in ipairs(pages) do
        local other, at = head(page)
        if other and (not best or at < position or (at == position and earlier(other, id))) then
          best, id, position = page, other, at
        end
        if best and lowest then break end -- the lists are in the order of the queue
      end
      if not best then return nil end
      best.at = best.at + 2
      return id, best.rank
    end
  end

  local function needs_room(j)
    return j.task ~= '' and #j.after == 0 and not j.function_done and sub(j.task, 1, 8) ~= 'treadle.'
  end

  -- whether a new job supersedes a ready job of its queue: `first` of the call, or the stored holder of its key
  local function supersedes(j, first)
    if first then return first.queue == j.queue and needs_room(first) end
    local holder = call('HGET', ns .. ':keys', j.key)
    local r = holder and B.get(holder)
    return r and r.state == READY and not r.function_done and r.j.queue == j.queue
  end

  -- The new jobs of a call that need room, by queue in the order of the call: their number, and their least rank. Also
  -- the rows that the call returns, supersedes or waits for.
  local function asked_for(jobs, answers)
    local queues, by, holders, needed, seen = {}, {}, {}, {}, {}
    for _, new in ipairs(jobs) do
      local id = new[1]
      needed[answers[id]] = true
      if answers[id] == id and not seen[id] and not B.get(id) then
        seen[id] = true
        local j = new[3]
        local needs = needs_room(j) and bound_of(j.queue)
        for _, up in ipairs(j.after) do needed[answers[up] or up] = true end
        if j.key then
          local holder = call('HGET', ns .. ':keys', j.key)
          if holder then needed[holder] = true end
          if needs and j.conflict == 'replace' then needs = not supersedes(j, holders[j.key]) end
          holders[j.key] = j
        end
        if needs then
          local ask = by[j.queue]
          if not ask then
            ask = { queue = j.queue, jobs = 0, least = j.rank }
            by[j.queue], queues[#queues + 1] = ask, ask
          end
          ask.jobs, ask.least = ask.jobs + 1, math.min(ask.least, j.rank)
        end
      end
    end
    return queues, needed
  end

  -- the queued jobs that may be shed, `count` at most: no run of them has begun
  local function fit(ask, rule, count, needed)
    local found, looked, lowest = {}, 0, rule.when_full == 'drop_lowest'
    for id, rank in outermost(ask.queue, lowest) do
      if lowest and rank >= ask.least then break end
      if not needed[id] then
        local r = B.get(id)
        local own = sub(r.j.task, 1, 8) == 'treadle.'
        if not (r.started_at or r.function_done or own) then found[#found + 1] = id end
        looked = looked + 1
        if #found == count or looked == count + LOOK then break end
      end
    end
    return found
  end

  -- Shed what must make room for the new jobs -> nil, or the refusal of the call; then nothing is changed.
  function make_room(jobs, answers)
    local chosen, queues, needed = {}, asked_for(jobs, answers)
    for _, ask in ipairs(queues) do
      local rule, waiting = bound_of(ask.queue), waiting_in(ask.queue)
      local count = excess(rule, waiting, ask.jobs)
      if count > 0 then
        local ids = rule.when_full ~= 'refuse' and fit(ask, rule, count, needed) or {}
        if #ids < count then return full(ask.queue, rule, waiting, ask.jobs) end
        local words = string.format('queue %s was full: max_waiting is %d', ask.queue, rule.max_waiting)
        for _, id in ipairs(ids) do chosen[#chosen + 1] = { id, words } end
      end
    end
    for _, each in ipairs(chosen) do E.finish(B.get(each[1]), CANCELLED, 'shed', each[2]) end
    E.count_endings()
  end
end
