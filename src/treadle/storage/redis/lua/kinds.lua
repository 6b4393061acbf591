-- Lists the jobs of which a storage has few, by kind and queue, so that a look at them need not read all rows.
-- `of:<kind>:<queue>` has ids by score; `of` has the names "<kind>:<queue>" of these lists, and of some that are empty.
K = { named = {} }
local OF, SYSTEM = ns .. ':of', ns .. ':system'

-- -> the kind and the score of a row, or of the values that its views have; nil if no list has it
function K.of(r, made)
  local state = r.state
  if state == READY then
    if r.queue_position then return nil end
    if r.blocked_on then return 'blocked', made end
    return 'scheduled', r.due_at or made
  elseif state == WAITING then
    return 'waiting', made
  elseif state == RUNNING then
    if r.function_done then return 'resumed', r.started_at or made end
  elseif state == FAILED and r.ended_at then
    return 'failed', -r.ended_at
  end
end

-- -> the kind as which a row, or the values that its views have, is counted
function K.counted(r)
  if r.state ~= READY then return STATES[r.state] end
  return r.queue_position and 'queued' or r.blocked_on and 'blocked' or 'scheduled'
end

-- Count a job that is of another kind. `was` is nil: it is new; `is` is nil: it is deleted.
function K.count(was, is, j, made, id)
  if not j.names then j.names = ':' .. j.queue .. '\0' .. j.task end
  was, is = was and was .. j.names, is and is .. j.names
  if was then counts[was] = (counts[was] or 0) - 1 end
  if is then counts[is] = (counts[is] or 0) + 1 end
  local watch = recount()
  if watch then watch.follow(made, id, was, is) end
end

function K.list(kind, queue)
  local list = OF .. ':' .. kind .. ':' .. queue
  if K.named[list] == nil then K.named[list] = kind .. ':' .. queue end
  return list
end

-- Note that this list has got an entry.
function K.name(list)
  local name = K.named[list]
  if name then
    call('SADD', OF, name)
    K.named[list] = false
  end
end

function K.is_system(j) return j.queue == 'treadle' or sub(j.task, 1, 8) == 'treadle.' end
K.SYSTEM = SYSTEM
