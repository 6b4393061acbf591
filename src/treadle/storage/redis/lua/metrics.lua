-- The rows of metrics. `metrics` has the lengths of their spans, as text. `metrics:<span>` has "<at>:<source>" sorted
-- by at, and the hash `metrics:<span>:data` maps them to the data. Both expire when nothing was stored for a while.
local METRICS = ns .. ':metrics'
local KEPT = ${METRICS_KEPT}  -- seconds; the caller removes rows that are older (store_metrics)
local touched = {}

-- Remove the rows named from ARGV[at] on: their number, then span, at and source of each.
local function drop_metrics(first)
  for k = first + 1, first + 3 * ARGV[first], 3 do
    local list, field = METRICS .. ':' .. ARGV[k], ARGV[k + 1] .. ':' .. ARGV[k + 2]
    call('ZREM', list, field)
    call('HDEL', list .. ':data', field)
  end
end

-- Store the rows from ARGV[at] on: their number, then span, at, source and data of each.
local function store_metrics(first)
  for k = first + 1, first + 4 * ARGV[first], 4 do
    local list, field = METRICS .. ':' .. ARGV[k], ARGV[k + 1] .. ':' .. ARGV[k + 2]
    call('ZADD', list, ARGV[k + 1], field)
    call('HSET', list .. ':data', field, ARGV[k + 3])
    touched[list] = ARGV[k]
  end
end

-- Let the sets that have got a row expire once no row has been stored for KEPT.
local function expire_metrics()
  for list, span in pairs(touched) do
    call('SADD', METRICS, span)
    for _, key in ipairs({ METRICS, list, list .. ':data' }) do call('PEXPIRE', key, KEPT * 1000) end
  end
end
