-- Stores new jobs; `jobs` is a list of { id, body }. First finds the jobs for which a stored row is returned.
NewJobs = {}

-- Take the key -> the job to wait for: the running holder that gave up the key, or the job that the superseded holder
-- waited for. It never returns `parent`, which may wait for this job, or a job that waits for `parent`.
local function take_over(job, parent)
  local holder = Endings.holder_of(job.key)
  call('HSET', ns .. ':keys', job.key, job.id)
  if not holder or holder == parent then return nil end
  local row = Unit.get(holder)
  if row.state >= SUCCEEDED then return nil end    -- it was stored and doomed in this call
  if row.function_done or row.state == RUNNING or (row.state == WAITING and row.started_at) then
    if parent and Endings.waiting_for(parent)[holder] then return nil end
    call('HSET', ns .. ':behind', job.id, holder)
    return holder
  end
  Endings.end_job(row, CANCELLED, 'superseded', 'superseded by ' .. job.id)
  Endings.count_endings()
  local first_id = call('HGET', ns .. ':behind', holder)
  local first = first_id and Unit.get(first_id)
  if not first or first.state >= SUCCEEDED or (parent and Endings.waiting_for(parent)[first_id]) then return nil end
  call('HSET', ns .. ':behind', job.id, first_id)
  return first_id
end

-- The error for a job whose id belongs to a job that may not be returned for it; see row_rules.taken_by.
local function refuse_taken_ids(jobs)
  local first = {}
  for _, new in ipairs(jobs) do
    local id, body = new[1], new[2]
    local known = first[id]
    if known or Unit.get(id) then
      local own_content, job = Row.new_job(body), Row.job(id, body)
      local stored = known and Row.job(id, known) or Unit.get(id).job
      local is_ours = sub(id, 1, 8) == 'treadle:'
      if not Endings.is_within(job.reach, stored.queue)
        or (is_ours and (job.queue ~= stored.queue or job.root ~= stored.root or job.parent ~= stored.parent)) then
        return 'beyond', id, own_content.task or ''
      end
      if own_content.nonce then
        local stored_content = known and Row.new_job(known) or Row.new_job(call('HGET', JOB, id), true)
        local differ = (own_content.payload or '[]') ~= (stored_content.payload or '[]')
        local task, wanted_task = stored_content.task or '', own_content.task or ''
        if own_content.nonce ~= stored_content.nonce and (differ or task ~= wanted_task) then
          return 'taken', id, task .. '\0' .. wanted_task .. '\0' .. (differ and '1' or '')
        end
      end
    else
      first[id] = body
    end
  end
end

-- Returns the first job that this one names outside its reach; see row_rules.check_reach.
local function first_outside_reach(job, jobs)
  local named, upstream = {}, job.parent or job.root
  for k, up in ipairs(job.after) do named[k] = up end
  if upstream then named[#named + 1] = upstream end
  Unit.load(named)
  for _, up in ipairs(named) do
    local row = Unit.get(up)
    local other = row and row.job
    for k = 1, other and 0 or #jobs do
      if jobs[k][1] == up then other = Row.job(up, jobs[k][2]) break end
    end
    if not other or not Endings.is_within(job.reach, other.queue) then return up end
    if up == job.parent and job.root ~= (other.root or up) then return job.root or up end
  end
end

-- Returns the id of the row that is returned for each job, by its id; or nil and what is wrong.
function NewJobs.plan(jobs, leaving)
  local answers, taken, ids = {}, {}, {}
  for k, new in ipairs(jobs) do ids[k] = new[1] end
  Unit.load(ids)
  local error, id, detail = refuse_taken_ids(jobs)
  if error then return nil, error, id, detail end
  for _, new in ipairs(jobs) do
    local id = new[1]
    if Unit.get(id) or answers[id] then
      answers[id] = answers[id] or id
    else
      local job = Row.job(id, new[2])
      new[3] = job
      local answer = id
      if job.key then
        local first = taken[job.key]
        local holder = first and first.id or Endings.holder_of(job.key, leaving)
        if holder and not Endings.is_within(job.reach, (first or Unit.get(holder).job).queue) then
          return nil, 'held', job.key, ''
        end
        if holder and job.conflict == 'raise' then return nil, 'held', job.key, holder end
        local held = holder and Unit.get(holder)
        if holder and ((job.conflict or 'keep') == 'keep' or (held and held.state >= SUCCEEDED)) then
          answer = holder
        else
          taken[job.key] = job
        end
      end
      answers[id] = answer
    end
  end
  for _, new in ipairs(jobs) do
    local id = new[1]
    local job = answers[id] == id and not Unit.get(id) and (new[3] or Row.job(id, new[2]))
    if job and #(job.reach or '') > 0 then
      local outside = first_outside_reach(job, jobs)
      if outside then return nil, 'unknown', outside, id end
    end
    if job and not job.wait_timeout then
      for _, up in ipairs(job.after) do
        if not answers[up] and not Unit.get(up) then return nil, 'unknown', up, id end
      end
    end
  end
  return answers
end

-- --- outcomes that only the first shard may apply

function NewJobs.root_of(row)
  local root = row.job.root
  return root and root ~= '' and root or row.id
end

-- Whether an id is derived from its parent's, so that no other workflow uses it. The same rule as in
-- treadle/core/ids.py: an id that continues a derived one was chosen by a user.
local function is_derived(id)
  if sub(id, 1, 8) ~= 'treadle:' then return false end
  local stem, rest = sub(id, 9, 40), sub(id, 41)
  if #stem < 32 or string.find(stem, '[^0-9a-f]') then return true end
  local process = sub(rest, 1, 13)
  if #process == 13 and string.find(process, '^%-[0-9a-f]+$') then rest = sub(rest, 14) end
  return rest == '' or (#rest > 6 and string.find(rest, '^%-[0-9]+$') ~= nil)
end

-- Whether an outcome may involve another workflow.
function NewJobs.involves_others(row, after, jobs)
  local root, own, ids, ups = NewJobs.root_of(row), {}, {}, {}
  for k, up in ipairs(after) do ups[k] = up end
  for k, new in ipairs(jobs) do
    local job = Row.job(new[1], new[2])
    own[job.id], ids[k] = true, job.id
    if job.key or #job.limits > 0 or job.wait_timeout or job.root ~= root or not is_derived(job.id) then return true end
    for _, up in ipairs(job.after) do ups[#ups + 1] = up end
  end
  for _, up in ipairs(ups) do
    local upstream = not own[up] and Unit.get(up)
    if not own[up] and (not upstream or NewJobs.root_of(upstream) ~= root) then return true end
  end
  return has_pointer(ids)
end

-- Returns the list with each id replaced by the id of the row that was returned for it.
local function with_returned(after, answers)
  local list, same = {}, true
  for k, up in ipairs(after) do
    list[k] = answers[up] or up
    if list[k] ~= up then same = false end
  end
  return same and after or list
end

local function store_job(new, answers, parent)
  local job = new[3]
  local soft = job.key and take_over(job, parent)
  local row = Unit.make(new[1], new[2], job)
  row.after = with_returned(job.after, answers)
  for _, up in ipairs(row.after) do
    if up == soft then soft = nil end    -- the holder is an upstream already: do not count it twice
  end
  row.pending, row.failures_allowed = Endings.endings_needed(job.required, row.after) + (soft and 1 or 0),
    Endings.failures_tolerated(row.failures_allowed, job.required, row.after)
  if job.deadline then row.deadline_at = now + job.deadline end
  row.due_at = earliest(not row.function_done and row.deadline_at or nil, job.wait_timeout and now + job.wait_timeout)
  if not soft and row.pending <= 0 and #row.after == 0 then
    Endings.count_endings()                    -- now, so that jobs which the parent's ending queues precede this one
    return Endings.end_wait(row)
  end
  Unit.put(row)
  if soft then Endings.set_edge(soft, row.id, true, true, 0) end
  Endings.wait_for_upstreams(row, row.after)
end

-- Returns the set of the ids that are new. `parent`: the unfinished job whose follow-ups they are.
function NewJobs.store_all(jobs, answers, parent)
  local fresh, born = {}, {}
  for _, new in ipairs(jobs) do
    if answers[new[1]] == new[1] and not Unit.get(new[1]) then fresh[#fresh + 1] = new end
  end
  for _, new in ipairs(fresh) do
    if not born[new[1]] then
      born[new[1]] = true
      store_job(new, answers, parent)
    end
  end
  return born
end
