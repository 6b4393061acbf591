-- ARGV: now, how many to pass over, how many. Answers, in the order in which they were made, for each
-- { job, row or '', '1' if it holds its key, whom it is behind or '', edges as msgpack }. Changes nothing.
local from, told = tonumber(ARGV[2]), {}
local ids = call('ZRANGE', MADE, from, from + tonumber(ARGV[3]) - 1)
local bodies, raws = fetch(JOB, ids), fetch(ROW, ids)
for k, id in ipairs(ids) do
  local body, raw = bodies[k], raws[k]
  local r, edges, seen = R.read(id, body, raw), {}, {}
  local behind = r.j.key and call('HGET', ns .. ':behind', id) or nil
  local function look(up)
    local open, soft, version = E.edge_of(up, id)
    if version and not seen[up] then
      seen[up] = true
      edges[#edges + 1] = { up, open, soft, version }
    end
  end
  for _, up in ipairs(r.after) do look(up) end
  for _, up in ipairs(r.ups or NOTHING) do look(up) end
  if behind then look(behind) end
  told[#told + 1] = body
  told[#told + 1] = raw or ''
  told[#told + 1] = r.j.key and call('HGET', ns .. ':keys', r.j.key) == id and '1' or ''
  told[#told + 1] = behind or ''
  told[#told + 1] = #edges > 0 and cmsgpack.pack(edges) or ''
end
return told
