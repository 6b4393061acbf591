-- ARGV: now. Returns the commands that the server refuses this user, also because of a key or channel: { command,
-- error, ... }. On a replica it returns the READONLY error.
-- The server checks rights before it reads a key, so each command runs where it cannot write: on a key of another type
-- (`schema` is a string), or on one that never exists.
local TEXT, NONE_SUCH = ns .. ':schema', ns .. ':none'
local refused, replica = {}, nil

local function try(...)
  local answer = redis.pcall(...)
  local why = type(answer) == 'table' and answer.err
  if why and string.find(why, 'READONLY', 1, true) then replica = answer end
  for _, phrase in ipairs(why and { 'ACL failure', 'user executing the script', 'NOPERM' } or {}) do
    if string.find(why, phrase, 1, true) then
      refused[#refused + 1], refused[#refused + 2] = (...), why
      return
    end
  end
end

for _, verb in ipairs({ 'HGETALL', 'HKEYS', 'HLEN', 'HVALS', 'SMEMBERS', 'ZCARD', 'ZPOPMAX' }) do try(verb, TEXT) end
for _, verb in ipairs({ 'GET', 'GETDEL', 'DEL', 'EXISTS' }) do try(verb, NONE_SUCH) end
for _, verb in ipairs({ 'HDEL', 'HEXISTS', 'HGET', 'HMGET', 'SADD', 'SISMEMBER', 'SMISMEMBER', 'SREM', 'ZMSCORE',
  'ZRANK', 'ZREM', 'ZSCORE' }) do
  try(verb, TEXT, 'a')
end
for _, verb in ipairs({ 'ZCOUNT', 'ZRANGE', 'ZRANGEBYSCORE', 'ZREMRANGEBYSCORE', 'ZREVRANGE' }) do
  try(verb, TEXT, 0, 0)
end
for _, verb in ipairs({ 'HSET', 'HSETNX' }) do try(verb, TEXT, 'a', '') end
for _, verb in ipairs({ 'HINCRBY', 'ZADD' }) do try(verb, TEXT, 1, 1) end
try('HSCAN', TEXT, 0)
try('PEXPIRE', NONE_SUCH, 1)
try('SET', NONE_SUCH, '', 'XX')
try('TIME')
try('PUBSUB', 'NUMSUB', ns .. ':say')
try('PUBLISH', ns .. ':say', cmsgpack.pack({}))
return replica or refused
