-- The mark of a move, fenced as `replaces` of storage/transfer.py says.
-- `bytes`: the first letter of its role, then JSON. Writes it -> nil, or the stored mark if that refuses it.
local M = {}
function M.write(bytes)
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
