-- Lists jobs by kind and queue, for kinds with few jobs, so that reading these jobs does not read all rows.
-- `of:<kind>:<queue>` has ids by score; `of` has the names "<kind>:<queue>" of these lists, and of some that are empty.
Kinds = { names = {} }
local OF, SYSTEM = ns .. ':of', ns .. ':system'

-- Returns the kind and the score of a row, or of the values that its views have; nil if no list has it.
function Kinds.entry_of(row, created_at)
  local state = row.state
  if state == READY then
    if row.queue_position then return nil end
    if row.blocked_on then return 'blocked', created_at end
    return 'scheduled', row.due_at or created_at
  elseif state == WAITING then
    return 'waiting', created_at
  elseif state == RUNNING then
    if row.function_done then return 'resumed', row.started_at or created_at end
  elseif state == FAILED and row.ended_at then
    return 'failed', -row.ended_at
  end
end

-- Returns the kind as which a row, or the values that its views have, is counted.
function Kinds.counted_as(row)
  if row.state ~= READY then return STATES[row.state] end
  return row.queue_position and 'queued' or row.blocked_on and 'blocked' or 'scheduled'
end

-- Count a job whose kind has changed. `was` is nil for a new job, `is` for a deleted one.
function Kinds.count(was, is, job, created_at, id)
  if not job.names then job.names = ':' .. job.queue .. '\0' .. job.task end
  was, is = was and was .. job.names, is and is .. job.names
  if was then counts[was] = (counts[was] or 0) - 1 end
  if is then counts[is] = (counts[is] or 0) + 1 end
  local ongoing = recount()
  if ongoing then ongoing.follow(created_at, id, was, is) end
end

function Kinds.list_of(kind, queue)
  local list = OF .. ':' .. kind .. ':' .. queue
  if Kinds.names[list] == nil then Kinds.names[list] = kind .. ':' .. queue end
  return list
end

-- Note that this list has got an entry.
function Kinds.note_name(list)
  local name = Kinds.names[list]
  if name then
    call('SADD', OF, name)
    Kinds.names[list] = false
  end
end

function Kinds.is_system(job) return job.queue == 'treadle' or sub(job.task, 1, 8) == 'treadle.' end
Kinds.SYSTEM = SYSTEM
