-- ARGV: now, '1' to change nothing, how many entries to check, the score and id after which to begin ('' for the start),
-- then the name "<kind>:<queue>" of a list, 'system', or '' for the rows themselves.
-- With '' it checks whether each row is in the list of its kind (kinds.lua), and system jobs in theirs; otherwise
-- whether each entry of the list is still true. An earlier version wrote no such lists. Returns { score and id of the
-- last entry, or '' '' at the end, then for each entry that was added, or dropped: the name of its list }. `listed` says
-- that all rows were checked once.
slowly()
if ARGV[2] ~= '1' then make_way() end
local look, most, name = ARGV[2] == '1', tonumber(ARGV[3]), ARGV[6]
local list = name == '' and MADE or name == 'system' and K.SYSTEM or ns .. ':of:' .. name
local from = 0
if ARGV[4] ~= '' then
  local before, at = standing(list, call('ZCARD', list), tonumber(ARGV[4]), ARGV[5])
  from = before + at
end
local found, ids = call('ZRANGE', list, from, from + most - 1, 'WITHSCORES'), {}
for k = 1, #found, 2 do ids[#ids + 1] = found[k] end
local bodies, raws, told = fetch(JOB, ids), fetch(ROW, ids), #ids < most and { '', '' } or { found[#found], found[#found - 1] }
local drops = {}

local function check(into, id, score, label)
  if tonumber(call('ZSCORE', into, id) or nil) == score then return end
  if not look then
    call('ZADD', into, num(score), id)
    K.name(into)
  end
  told[#told + 1] = label
end

for k, id in ipairs(ids) do
  local body, raw = bodies[k], raws[k]
  local state = raw and byte(raw) or READY
  local whole = body and (name ~= '' or (state ~= SUCCEEDED and state ~= CANCELLED and (raw or byte(body) ~= PLAIN)))
  local r = whole and R.read(id, body, raw)
  local kind, score
  if r then kind, score = K.of(r, r.created_at) end
  if name == '' then
    if kind then check(K.list(kind, r.j.queue), id, score, kind .. ':' .. r.j.queue) end
    local tl, ql = 0, 0
    if body then tl, ql = struct.unpack('>HH', body, 20) end
    local words = body and { task = sub(body, 28, 27 + tl), queue = sub(body, 28 + tl, 27 + tl + ql) }
    if words and K.is_system(words) then check(K.SYSTEM, id, tonumber(found[2 * k]), 'system') end
  else
    local holds = r and (name == 'system' and K.is_system(r.j) or kind and kind .. ':' .. r.j.queue == name)
    if not holds then
      drops[#drops + 1] = id
      told[#told + 1] = name
    end
  end
end
if not look then
  many('ZREM', list, drops)
  if name == '' and told[1] == '' then call('SET', ns .. ':listed', '1') end
end
return told
