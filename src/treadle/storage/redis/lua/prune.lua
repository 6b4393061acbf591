-- ARGV: now, how many may go, how many to look past, '1' to tend first.
-- Answers { how many went, how many were looked at and stay, '1' if there may be more }.
if away() then return { 0, 0, '' } end
slowly()
local LOOK = 500                         -- rows one call looks at
if ARGV[4] == '1' then
  T.tend()
  A.write()
  B.finish()
end
local limit, past = tonumber(ARGV[2]), tonumber(ARGV[3])
local ids = call('ZRANGEBYSCORE', OLD, '-inf', num(now), 'LIMIT', past, LOOK)
local went, stay = 0, 0

local function needed(r)
  if call('HEXISTS', ns .. ':needs', r.id) == 1 then return true end
  local root = r.j.root
  root = root and root ~= '' and root or r.id
  if call('HEXISTS', ns .. ':roots', root) == 1 then return true end
  local first = root ~= r.id and B.get(root)
  return first and first.state < SUCCEEDED and (not first.j.root or first.j.root == '')
end

local function forget(r)
  E.drop_key(r)
  for _, up in ipairs(r.after) do E.drop_edge(up, r.id) end
  for _, up in ipairs(r.ups or {}) do E.drop_edge(up, r.id) end
  if r.j.key then
    local behind = call('HGET', ns .. ':behind', r.id)
    if behind then
      E.drop_edge(behind, r.id)
      call('HDEL', ns .. ':behind', r.id)
    end
  end
  B.forget(r)
end

B.load(ids)
for _, id in ipairs(ids) do
  if went == limit then break end
  local r = B.get(id)
  if not r then
    call('ZREM', OLD, id)
  elseif needed(r) then
    stay = stay + 1
  else
    forget(r)
    went = went + 1
  end
end
return { went, stay, (#ids == LOOK and went < limit) and '1' or '' }
