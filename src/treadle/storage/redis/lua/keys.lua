-- Names of keys, states and flags. A script declares them at its start and again in the shared pieces, because a new
-- local is cheaper than a captured one.
-- KEYS[1] is the namespace as a hash tag, "{treadle:<name>}". Every key begins with it, so a cluster keeps all keys on
-- one node.
local ns, call, sub, byte = KEYS[1], redis.call, string.sub, string.byte
-- Lua does not roll back. A hint is published after the writes and may be lost, so a refused PUBLISH is ignored.
local function publish(channel, message) redis.pcall('PUBLISH', channel, message) end
local JOB, ROW, DUE, MADE = ns .. ':job', ns .. ':row', ns .. ':due', ns .. ':made'
local OLD, ENDED, LIVE, BEGUN = ns .. ':old', ns .. ':ended', ns .. ':live', ns .. ':begun'
-- A shard after the first, "{treadle:<name>/<n>}", has only workflows that involve no other one (decisions/shards.md).
-- POINTERS (`:left`) has the ids that must not be stored in this shard. A value says since when and, after "@", in
-- which shard the id belongs, if that is not the first one.
-- KEYS[3] is given if there are several shards.
local LATER_SHARD, POINTERS = string.find(ns, '/', 1, true) ~= nil, ns .. ':left'
local OPENS, RULES, PARENTS, SKIPS = ns .. ':opens', ns .. ':rules', ns .. ':parents', ns .. ':skips'
local COUNTS, RECOUNT = ns .. ':counts', ns .. ':recount'

local WAITING, READY, RUNNING, SUCCEEDED, FAILED, CANCELLED = 0, 1, 2, 3, 4, 5
local STATES = { [0] = 'waiting', 'ready', 'running', 'succeeded', 'failed', 'cancelled' }

local PLAIN, RAN, TAIL, NOTED = 1, 2, 4, 8    -- flags; NOTED, always with TAIL: the job has checkpoints

local NONE = -1e300                      -- no moment
local NONE_BYTES = struct.pack('>d', NONE)
local ANY = 2147483647                   -- any number of failures is tolerated
local STEP = 1000                        -- values of a variadic call; Lua's unpack fails near 8,000
