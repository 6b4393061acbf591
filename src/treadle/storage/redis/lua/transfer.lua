-- Reads jobs with the data that their rows do not have (key, edges), and stores such jobs unchanged.
Transfer = {}

-- Returns for each id: job, row or '', '1' if it holds its key, the former holder for which it waits or '', edges as
-- msgpack.
function Transfer.read(ids)
  local values = {}
  local bodies, row_bytes = fetch(JOB, ids), fetch(ROW, ids)
  for k, id in ipairs(ids) do
    local body, stored_row = bodies[k], row_bytes[k]
    local row, edges, seen = Row.read(id, body, stored_row), {}, {}
    local behind = row.job.key and call('HGET', ns .. ':behind', id) or nil
    local function add_edge(up)
      local open, soft, version = Endings.edge_of(up, id)
      if version and not seen[up] then
        seen[up] = true
        edges[#edges + 1] = { up, open, soft, version }
      end
    end
    for _, up in ipairs(row.after) do add_edge(up) end
    for _, up in ipairs(row.ups or NOTHING) do add_edge(up) end
    if behind then add_edge(behind) end
    values[#values + 1] = body
    values[#values + 1] = Row.whole(id, stored_row) or ''
    values[#values + 1] = row.job.key and call('HGET', ns .. ':keys', row.job.key) == id and '1' or ''
    values[#values + 1] = behind or ''
    values[#values + 1] = #edges > 0 and cmsgpack.pack(edges) or ''
  end
  return values
end

-- From ARGV[first] on: id, and the values of `read`. Advances no due rows, counts no endings and publishes nothing. A
-- known id is left as it is.
function Transfer.store(first)
  for k = first, #ARGV, 6 do
    local id, body, stored_row = ARGV[k], ARGV[k + 1], ARGV[k + 2]
    if call('HEXISTS', JOB, id) == 0 then
      if stored_row ~= '' and byte(stored_row, 2) >= NOTED then
        local length = struct.unpack('>I4', stored_row, #stored_row - 3)
        call_many('HSET', Row.checkpoints_key(id), cmsgpack.unpack(sub(stored_row, -4 - length, -5)), 2)
        stored_row = sub(stored_row, 1, -5 - length)
      end
      local row = Row.read(id, body, stored_row ~= '' and stored_row or nil)
      call('HSET', JOB, id, body)
      call('ZADD', MADE, num(row.created_at), id)
      if Kinds.is_system(row.job) then call('ZADD', Kinds.SYSTEM, num(row.created_at), id) end
      row.views = {}                             -- no view (sorted set or list) has it yet
      Unit.rows[id] = row
      Unit.put(row)
      if stored_row == '' then Unit.dirty[id] = nil end
      if ARGV[k + 3] == '1' then call('HSET', ns .. ':keys', row.job.key, id) end
      if ARGV[k + 4] ~= '' then call('HSET', ns .. ':behind', id, ARGV[k + 4]) end
      for _, edge in ipairs(ARGV[k + 5] ~= '' and cmsgpack.unpack(ARGV[k + 5]) or NOTHING) do
        Endings.set_edge(edge[1], id, edge[2], edge[3], edge[4])
      end
    end
  end
end
