-- Writes the changes of the kept counts, and of those of a recount. Counts of 0 stay until a prune (tidy.lua).
do
  local key, changes = COUNTS, counts
  while changes do
    local changed = 0
    for _, change in pairs(changes) do
      if change ~= 0 then changed = changed + 1 end
    end
    if changed > 2 then                  -- two commands for all changes are cheaper then
      local fields, set = {}, {}
      for field, change in pairs(changes) do
        if change ~= 0 then fields[#fields + 1] = field end
      end
      for k, jobs in ipairs(fetch(key, fields)) do
        set[2 * k - 1], set[2 * k] = fields[k], string.format('%d', (jobs or 0) + changes[fields[k]])
      end
      call_many('HSET', key, set, 2)
    elseif changed > 0 then
      for field, change in pairs(changes) do -- as text: the server writes 17 digits of a number
        if change ~= 0 then call('HINCRBY', key, field, string.format('%d', change)) end
      end
    end
    key, changes = RECOUNT, key == COUNTS and recounting and recounting.changes
  end
end
