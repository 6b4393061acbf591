-- Reads jobs with the data that their rows do not have (key, edges), and stores such jobs unchanged.
C = {}

-- for each id { job, row or '', '1' if it holds its key, the former key holder it waits for or '', edges as msgpack }
function C.told(ids)
  local told = {}
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
end

-- From ARGV[at] on: id, and the values of `told`. Advances no due rows, counts no endings and publishes nothing. A
-- known id is left as it is.
function C.store(at)
  for k = at, #ARGV, 6 do
    local id, body, raw = ARGV[k], ARGV[k + 1], ARGV[k + 2]
    if call('HEXISTS', JOB, id) == 0 then
      local r = R.read(id, body, raw ~= '' and raw or nil)
      call('HSET', JOB, id, body)
      call('ZADD', MADE, num(r.created_at), id)
      if K.is_system(r.j) then call('ZADD', K.SYSTEM, num(r.created_at), id) end
      r.v = {}                             -- no view has it yet
      B.rows[id] = r
      B.put(r)
      if raw == '' then B.dirty[id] = nil end
      if ARGV[k + 3] == '1' then call('HSET', ns .. ':keys', r.j.key, id) end
      if ARGV[k + 4] ~= '' then call('HSET', ns .. ':behind', id, ARGV[k + 4]) end
      for _, edge in ipairs(ARGV[k + 5] ~= '' and cmsgpack.unpack(ARGV[k + 5]) or NOTHING) do
        E.set_edge(edge[1], id, edge[2], edge[3], edge[4])
      end
    end
  end
end
