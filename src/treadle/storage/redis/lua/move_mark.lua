-- Writes the mark of a move if it may replace the stored one: `replaces` of storage/transfer.py.
-- `bytes`: the first letter of its role, then JSON. Returns nil, or the stored mark if that may not be replaced.
local Mark = {}
function Mark.write(bytes)
  local stored = call('GET', MOVE)
  if stored then
    local old, new = cjson.decode(sub(stored, 2)), cjson.decode(sub(bytes, 2))
    local allowed
    if (old.run or '') == new.run then
      allowed = new.step >= (old.step or 0)
    elseif old.move == new.move and (old.role == 'arrived' or old.role == 'aborted' or old.role == 'partial') then
      allowed = false
    else
      allowed = new.turn > (old.turn or 0)
    end
    if not allowed then return stored end
  end
  call('SET', MOVE, bytes)
end
