-- ARGV: now, how many rows to count, and the score and id after which to begin ('' for the start).
-- Returns { score and id of the last row, or '' '' at the end; then queue, task, state, jobs, queued jobs, blocked jobs
-- and the first position or '', per queue, task and state }. One step of the whole count. Changes nothing.
local most, size = tonumber(ARGV[2]), call('ZCARD', MADE)
local from = 0
if ARGV[3] ~= '' then
  local before, at = standing(MADE, size, tonumber(ARGV[3]), ARGV[4])
  from = before + at
end
local found, ids = call('ZRANGE', MADE, from, from + most - 1, 'WITHSCORES'), {}
for k = 1, #found, 2 do ids[#ids + 1] = found[k] end
local bodies, raws, groups, list = fetch(JOB, ids), fetch(ROW, ids), {}, {}
for k = 1, #ids do
  local body, raw = bodies[k], raws[k]
  if body then
    local state, position, blocked_on = raw and byte(raw) or READY, nil, false
    local own = raw and sub(raw, 51, 58) or sub(body, -8)
    if own ~= NONE_BYTES then
      position = struct.unpack('>d', own)
    elseif state < SUCCEEDED and byte(raw, 2) >= TAIL then
      local wl, ql = struct.unpack('>HH', raw, 117)
      blocked_on = cmsgpack.unpack(sub(raw, 121 + wl + ql))[2]
    end
    local names = byte(body, 20) * 256 + byte(body, 21) + byte(body, 22) * 256 + byte(body, 23)
    names = state .. sub(body, 20, 23) .. sub(body, 28, 27 + names)
    local g = groups[names]
    if not g then
      local tl, ql = struct.unpack('>HH', body, 20)
      g = { sub(body, 28 + tl, 27 + tl + ql), sub(body, 28, 27 + tl), state, 0, 0, 0, nil }
      groups[names], list[#list + 1] = g, g
    end
    g[4] = g[4] + 1
    if position then
      g[5] = g[5] + 1
      if not g[7] or position < g[7] then g[7] = position end
    elseif blocked_on then
      g[6] = g[6] + 1
    end
  end
end
local told = #ids < most and { '', '' } or { found[#found], found[#found - 1] }
for _, g in ipairs(list) do
  for k = 1, 6 do told[#told + 1] = g[k] end
  told[#told + 1] = g[7] and num(g[7]) or ''
end
return told
