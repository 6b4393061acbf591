-- ARGV: now, '1' to change nothing, how many entries to check, the score and id after which to begin ('' for the
-- start), then the name "<kind>:<queue>" of a list, 'system', or '' for the rows themselves.
-- With '' it checks whether each row is in the list of its kind (kinds.lua), and system jobs in theirs; otherwise
-- whether each entry of the list is still true. Returns { score and id of the last entry, or '' '' at the end, then for
-- each entry that was added, or dropped: the name of its list }.
define_shared()
if ARGV[2] ~= '1' then write_without_memory() end
local dry_run, most, name = ARGV[2] == '1', tonumber(ARGV[3]), ARGV[6]
local list = name == '' and MADE or name == 'system' and Kinds.SYSTEM or ns .. ':of:' .. name
local entries, ids = entries_after(list, most, tonumber(ARGV[4]), ARGV[5])
local bodies, raws, answer =
  fetch(JOB, ids), fetch(ROW, ids), #ids < most and { '', '' } or { entries[#entries], entries[#entries - 1] }
local drops = {}

local function check(list_of_kind, id, score, label)
  if tonumber(call('ZSCORE', list_of_kind, id) or nil) == score then return end
  if not dry_run then
    call('ZADD', list_of_kind, num(score), id)
    Kinds.note_name(list_of_kind)
  end
  answer[#answer + 1] = label
end

for k, id in ipairs(ids) do
  local body, raw = bodies[k], raws[k]
  local state = raw and byte(raw) or READY
  local whole = body and (name ~= '' or (state ~= SUCCEEDED and state ~= CANCELLED and (raw or byte(body) ~= PLAIN)))
  local row = whole and Row.read(id, body, raw)
  local kind, score
  if row then kind, score = Kinds.entry_of(row, row.created_at) end
  if name == '' then
    if kind then check(Kinds.list_of(kind, row.job.queue), id, score, kind .. ':' .. row.job.queue) end
    if body then
      local task_length, queue_length = struct.unpack('>HH', body, 20)
      local task_end, queue_end = 27 + task_length, 27 + task_length + queue_length
      local names = { task = sub(body, 28, task_end), queue = sub(body, task_end + 1, queue_end) }
      if Kinds.is_system(names) then check(Kinds.SYSTEM, id, tonumber(entries[2 * k]), 'system') end
    end
  else
    local belongs = row and (name == 'system' and Kinds.is_system(row.job)
      or kind and kind .. ':' .. row.job.queue == name)
    if not belongs then
      drops[#drops + 1] = id
      answer[#answer + 1] = name
    end
  end
end
if not dry_run then call_many('ZREM', list, drops) end
return answer
