-- The names of keys, states and flags. They stand at the head of a script, and again at that of the pieces: making a name
-- anew is cheaper than taking it from outside.
-- KEYS[1] is the namespace as a hash tag, "{treadle:<name>}"; every key begins with it, so a cluster keeps them together.
local ns, call, sub, byte = KEYS[1], redis.call, string.sub, string.byte
-- Lua does not roll back. A hint comes after the writes and may be lost, so a server that refuses it fails nothing.
local function hint(channel, words) redis.pcall('PUBLISH', channel, words) end
local JOB, ROW, DUE, MADE = ns .. ':job', ns .. ':row', ns .. ':due', ns .. ':made'
local OLD, ENDED, LIVE, BEGUN = ns .. ':old', ns .. ':ended', ns .. ':live', ns .. ':begun'
-- A shard beside the first, "{treadle:<name>/<n>}", has only workflows that concern nobody else (decisions/shards.md).
-- LEFT: ids that are not to be stored here: since when, and after "@" the shard they are in if it is not the first one.
-- KEYS[3] is given where there are several shards.
local SPREAD, LEFT = string.find(ns, '/', 1, true) ~= nil, ns .. ':left'
local OPENS, RULES, PARENTS, SKIPS = ns .. ':opens', ns .. ':rules', ns .. ':parents', ns .. ':skips'

local WAITING, READY, RUNNING, SUCCEEDED, FAILED, CANCELLED = 0, 1, 2, 3, 4, 5
local STATES = { [0] = 'waiting', 'ready', 'running', 'succeeded', 'failed', 'cancelled' }

local PLAIN, RAN, TAIL = 1, 2, 4          -- flags

local NONE = -1e300                      -- no moment
local NONE_BYTES = struct.pack('>d', NONE)
local ANY = 2147483647                   -- any number of failures is tolerated
local STEP = 1000                        -- values of a variadic call; Lua's unpack ends near 8,000
