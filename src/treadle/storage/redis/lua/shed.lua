-- Makes room in bounded queues before new jobs are stored, like storage/machine/bounds.py.
local make_room
if has_bounds then
  local LOOK = ${SHED_LOOK}
  local PAGE = 50

  -- An iterator over the ids of the queued jobs of a queue: from the last in queue order, or from the first by position
  -- and id. The second value is their rank.
  local function shedding_candidates(queue, lowest)
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
        local other, score = head(page)
        if other and (not best or score < position or (score == position and earlier(other, id))) then
          best, id, position = page, other, score
        end
        if best and lowest then break end -- the lists are already in queue order
      end
      if not best then return nil end
      best.at = best.at + 2
      return id, best.rank
    end
  end

  local function needs_room(job)
    return job.task ~= '' and #job.after == 0 and not job.function_done and sub(job.task, 1, 8) ~= 'treadle.'
  end

  -- Whether a new job supersedes a ready job of its queue: `first` of the call, or the stored holder of its key.
  local function supersedes(job, first)
    if first then return first.queue == job.queue and needs_room(first) end
    local holder = call('HGET', ns .. ':keys', job.key)
    local row = holder and Unit.get(holder)
    return row and row.state == READY and not row.function_done and row.job.queue == job.queue
  end

  -- The new jobs of a call that need room, by queue in the order of the call: their number, and their least rank. Also
  -- returns the rows that the call returns, supersedes or waits for.
  local function jobs_needing_room(jobs, answers)
    local queues, by_queue, holders, needed, seen = {}, {}, {}, {}, {}
    for _, new in ipairs(jobs) do
      local id = new[1]
      needed[answers[id]] = true
      if answers[id] == id and not seen[id] and not Unit.get(id) then
        seen[id] = true
        local job = new[3]
        local needs = needs_room(job) and bound_of(job.queue)
        for _, up in ipairs(job.after) do needed[answers[up] or up] = true end
        if job.key then
          local holder = call('HGET', ns .. ':keys', job.key)
          if holder then needed[holder] = true end
          if needs and job.conflict == 'replace' then needs = not supersedes(job, holders[job.key]) end
          holders[job.key] = job
        end
        if needs then
          local need = by_queue[job.queue]
          if not need then
            need = { queue = job.queue, jobs = 0, least = job.rank }
            by_queue[job.queue], queues[#queues + 1] = need, need
          end
          need.jobs, need.least = need.jobs + 1, math.min(need.least, job.rank)
        end
      end
    end
    return queues, needed
  end

  -- Returns at most `count` queued jobs that may be shed, because no run of them has begun.
  local function jobs_to_shed(need, rule, count, needed)
    local shed_ids, checked, lowest = {}, 0, rule.when_full == 'drop_lowest'
    for id, rank in shedding_candidates(need.queue, lowest) do
      if lowest and rank >= need.least then break end
      if not needed[id] then
        local row = Unit.get(id)
        local own = sub(row.job.task, 1, 8) == 'treadle.'
        if not (row.started_at or row.function_done or own) then shed_ids[#shed_ids + 1] = id end
        checked = checked + 1
        if #shed_ids == count or checked == count + LOOK then break end
      end
    end
    return shed_ids
  end

  -- Shed the jobs that must make room for the new ones. Returns the refusal of the call if there are too few of them;
  -- then nothing is changed.
  function make_room(jobs, answers)
    local chosen, queues, needed = {}, jobs_needing_room(jobs, answers)
    for _, need in ipairs(queues) do
      local rule, waiting = bound_of(need.queue), count_waiting(need.queue)
      local count = excess(rule, waiting, need.jobs)
      if count > 0 then
        local ids = rule.when_full ~= 'refuse' and jobs_to_shed(need, rule, count, needed) or {}
        if #ids < count then return refusal_of(need.queue, rule, waiting, need.jobs) end
        local error = string.format('queue %s was full: max_waiting is %d', need.queue, rule.max_waiting)
        for _, id in ipairs(ids) do chosen[#chosen + 1] = { id, error } end
      end
    end
    for _, shed_job in ipairs(chosen) do Endings.end_job(Unit.get(shed_job[1]), CANCELLED, 'shed', shed_job[2]) end
    Endings.count_endings()
  end
end
