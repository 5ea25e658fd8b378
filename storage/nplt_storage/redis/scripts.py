"""The Lua scripts: each is one atomic step.

Every script gets the conversation's base name as the first key and the prefix as the
second. It returns a word, or what was asked for:

    done    it was done
    gone    there is no such conversation
    taken   there is one already
    held    another server has it open: nothing changed
    stale   the head or the revision is not what the writer believes: nothing changed
    lost    the entry at the head is missing, which is noted: nothing else changed

Scripts for writers first get the writer's id and the length of its lease. All checks
come before the first write, so a script does not fail halfway.
"""

from __future__ import annotations

from typing import Final

_COMMON: Final = """
local base, prefix = KEYS[1], KEYS[2]
local meta, log, live = base .. ':meta', base .. ':log', base .. ':live'
local owner, prompts = base .. ':owner', base .. ':prompts'

local function keys_of(of)
  local found = {
    of .. ':meta', of .. ':log', of .. ':checkpoint', of .. ':live', of .. ':prompts',
    of .. ':blobs'
  }
  for _, id in ipairs(redis.call('SMEMBERS', of .. ':blobs')) do
    found[#found + 1] = of .. ':blob:' .. id
  end
  return found
end

-- All keys of a conversation go at the same instant; 0: they stay.
local function expire(of, milliseconds)
  milliseconds = tonumber(milliseconds)
  local now = redis.call('TIME')
  local at = now[1] * 1000 + math.floor(now[2] / 1000) + milliseconds
  for _, key in ipairs(keys_of(of)) do
    if milliseconds > 0 then
      redis.call('PEXPIREAT', key, string.format('%.0f', at))
    else
      redis.call('PERSIST', key)
    end
  end
end

local function drop(of)
  for _, key in ipairs(keys_of(of)) do redis.call('DEL', key) end
end

local function move(from, to)
  drop(to)
  for _, key in ipairs(keys_of(from)) do
    if redis.call('EXISTS', key) == 1 then
      redis.call('RENAME', key, to .. string.sub(key, #from + 1))
    end
  end
end

local function list_of_its_user()
  return prefix .. '@user:' .. redis.call('HGET', meta, 'user')
end

local function set_row(row, place)
  local list, before = list_of_its_user(), redis.call('HGET', meta, 'place')
  redis.call('HSET', meta, 'row', row, 'place', place)
  if before and before ~= place then redis.call('ZREM', list, before) end
  redis.call('ZADD', list, 0, place)
end

local function digest_at(seq)
  local found = redis.call('XRANGE', log, seq .. '-0', seq .. '-0')[1]
  return found and redis.sha1hex(found[2][2]) or 'none'
end

-- Takes the entry at the head back if it is one of those whose writer never
-- heard whether they arrived.
local function take_back(seq, digests)
  if not string.find(digests, digest_at(seq), 1, true) then return false end
  redis.call('XDEL', log, seq .. '-0')
  redis.call('XSETID', log, (seq - 1) .. '-0')
  redis.call('HSET', meta, 'head', seq - 1)
  return true
end

-- How many there are is counted apart: if Redis evicts them, that shows.
local function note_prompt(name, noted)
  local added = redis.call('HSET', prompts, name, noted)
  if redis.call('HEXISTS', meta, 'prompts') == 1 then
    redis.call('HINCRBY', meta, 'prompts', added)
  end
end

local function is_held_by_another(token)
  local holder = redis.call('GET', owner)
  return holder and holder ~= token
end

local function hold(token, milliseconds)
  redis.call('SET', owner, token, 'PX', milliseconds)
end
"""

_WRITER: Final = (
    _COMMON
    + """
local token, lease = ARGV[1], ARGV[2]
if redis.call('EXISTS', meta) == 0 then return 'gone' end
if is_held_by_another(token) then return 'held' end
"""
)

# One that is as empty as on its first day, and of the same creation, is there
# because its creator never heard that it succeeded, and asks again.
CREATE: Final = (
    _COMMON
    + """
local token, lease, row, place, user, origin, rev, ttl = unpack(ARGV)
local known = redis.call('HMGET', meta, 'head', 'rev')
if known[1] then
  if known[1] ~= '0' or known[2] ~= rev then return 'taken' end
  redis.call('ZREM', list_of_its_user(), redis.call('HGET', meta, 'place'))
else
  drop(base)
end
redis.call('HSET', meta, 'user', user, 'origin', origin, 'rev', rev, 'head', 0, 'prompts', 0)
set_row(row, place)
hold(token, lease)
expire(base, ttl)
return 'done'
"""
)

# Who only reads gives no token.
OPEN: Final = (
    _COMMON
    + """
local ttl, token, lease = unpack(ARGV)
if redis.call('EXISTS', meta) == 0 then return 'gone' end
if token then
  if is_held_by_another(token) then return 'held' end
  hold(token, lease)
end
if tonumber(ttl) > 0 then expire(base, ttl) end
local known = redis.call('HMGET', meta, 'row', 'accessed', 'damaged', 'rev')
known[5] = redis.call('GET', base .. ':checkpoint')
known[6] = redis.call('GET', live)
return known
"""
)

RENEW: Final = """
local token, lease = unpack(ARGV)
for _, base in ipairs(KEYS) do
  local holder = redis.call('GET', base .. ':owner')
  if (not holder or holder == token) and redis.call('EXISTS', base .. ':meta') == 1 then
    redis.call('SET', base .. ':owner', token, 'PX', lease)
  end
end
return 'done'
"""

RELEASE: Final = (
    _COMMON
    + """
if redis.call('GET', owner) == ARGV[1] then redis.call('DEL', owner) end
return 'done'
"""
)

APPEND: Final = (
    _WRITER
    + """
local seq, line, row, place, rev, ttl, forget, doubts, first, name = unpack(ARGV, 3)
local known = redis.call('HMGET', meta, 'head', 'rev')
if known[2] ~= rev then return 'stale' end
local head = tonumber(known[1])
seq = tonumber(seq)
if head >= seq and doubts ~= '' then
  local digest = digest_at(seq)
  if digest == redis.sha1hex(line) and string.find(doubts, digest, 1, true) then return 'done' end
  if head == seq and take_back(seq, doubts) then head = seq - 1 end
end
if head ~= seq - 1 then return 'stale' end
local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
if head >= tonumber(first) and not (last and last[1] == head .. '-0') then
  redis.call('HSET', meta, 'damaged', 'entry ' .. head .. ' is not there')
  return 'lost'
end
redis.call('XADD', log, seq .. '-0', 'line', line)
redis.call('HSET', meta, 'head', seq)
if name ~= '' then note_prompt(name, '[' .. seq .. ']') end
set_row(row, place)
if forget == '1' then redis.call('DEL', live) end
hold(token, lease)
if tonumber(ttl) > 0 then expire(base, ttl) end
return 'done'
"""
)

SETTLE: Final = (
    _WRITER
    + """
local seq, row, place, rev, doubts = unpack(ARGV, 3)
local known = redis.call('HMGET', meta, 'head', 'rev')
if known[2] ~= rev or known[1] ~= seq then return 'stale' end
if take_back(tonumber(seq), doubts) then set_row(row, place) end
return 'done'
"""
)

TRIM: Final = (
    _WRITER
    + """
local head, rev, first, checkpoint, row, place, ttl = unpack(ARGV, 3)
local known = redis.call('HMGET', meta, 'head', 'rev')
if known[1] ~= head or known[2] ~= rev then return 'stale' end
redis.call('SET', base .. ':checkpoint', checkpoint)
redis.call('XTRIM', log, 'MINID', first .. '-0')
for place_in_list = 10, #ARGV, 2 do
  redis.call('HSET', prompts, ARGV[place_in_list], ARGV[place_in_list + 1])
end
set_row(row, place)
if tonumber(ttl) > 0 then expire(base, ttl) end
return 'done'
"""
)

APPEND_LIVE: Final = (
    _WRITER
    + """
local begins, pieces = unpack(ARGV, 3)
local left = redis.call('PTTL', meta)
redis.call(begins == '1' and 'SET' or 'APPEND', live, pieces)
if left > 0 then redis.call('PEXPIRE', live, left) end
return 'done'
"""
)

TOUCH: Final = (
    _COMMON
    + """
local at, ttl = unpack(ARGV)
if redis.call('EXISTS', meta) == 0 then return 'gone' end
local known = redis.call('HGET', meta, 'accessed')
if not known or known < at then redis.call('HSET', meta, 'accessed', at) end
if tonumber(ttl) > 0 then expire(base, ttl) end
return 'done'
"""
)

KEEP_BLOB: Final = (
    _WRITER
    + """
local blob_id, data, ttl = unpack(ARGV, 3)
redis.call('SET', base .. ':blob:' .. blob_id, data)
redis.call('SADD', base .. ':blobs', blob_id)
if tonumber(ttl) > 0 then expire(base, ttl) end
return 'done'
"""
)

DELETE: Final = (
    _COMMON
    + """
local trash, ttl, at, milliseconds, id = KEYS[3], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if redis.call('EXISTS', meta) == 0 then return 'gone' end
redis.call('ZREM', list_of_its_user(), redis.call('HGET', meta, 'place'))
redis.call('HSET', meta, 'deleted', at)
redis.call('ZADD', prefix .. '@deleted:' .. redis.call('HGET', meta, 'user'), milliseconds, id)
move(base, trash)
redis.call('DEL', owner)
expire(trash, ttl)
return 'done'
"""
)

DROP: Final = _COMMON + "drop(base)\nreturn 'done'\n"

UNDELETE: Final = (
    _COMMON
    + """
local trash, ttl, id, user = KEYS[3], ARGV[1], ARGV[2], ARGV[3]
if redis.call('EXISTS', trash .. ':meta') == 0 then return 'gone' end
if user and redis.call('HGET', trash .. ':meta', 'user') ~= user then return 'gone' end
if redis.call('EXISTS', meta) == 1 then return 'taken' end
move(trash, base)
redis.call('HDEL', meta, 'deleted')
redis.call('ZREM', prefix .. '@deleted:' .. redis.call('HGET', meta, 'user'), id)
redis.call('ZADD', list_of_its_user(), 0, redis.call('HGET', meta, 'place'))
expire(base, ttl)
return 'done'
"""
)

PUBLISH: Final = (
    _COMMON
    + """
local made = KEYS[3]
local row, place, user, origin, rev, head, ttl = unpack(ARGV)
if redis.call('EXISTS', meta) == 1 then return 'taken' end
move(made, base)
redis.call('HSET', meta, 'user', user, 'origin', origin, 'rev', rev, 'head', head)
redis.call('HSET', meta, 'prompts', redis.call('HLEN', prompts))
set_row(row, place)
expire(base, ttl)
return 'done'
"""
)

REWRITE: Final = (
    _WRITER
    + """
local made = KEYS[3]
local head, rev, row, place, new_rev, ttl = unpack(ARGV, 3)
local known = redis.call('HMGET', meta, 'head', 'rev')
if known[1] ~= head or known[2] ~= rev then return 'stale' end
redis.call('RENAME', made .. ':log', log)
if redis.call('EXISTS', made .. ':checkpoint') == 1 then
  redis.call('RENAME', made .. ':checkpoint', base .. ':checkpoint')
end
redis.call('DEL', made .. ':prompts')
redis.call('HSET', meta, 'rev', new_rev)
set_row(row, place)
for place_in_list = 9, #ARGV do
  redis.call('DEL', base .. ':blob:' .. ARGV[place_in_list])
  redis.call('SREM', base .. ':blobs', ARGV[place_in_list])
end
expire(base, ttl)
return 'done'
"""
)

PROMPT_BY_MESSAGE_ID: Final = (
    _COMMON
    + """
local count = tonumber(redis.call('HGET', meta, 'prompts') or -1)
return {redis.call('HGET', prompts, ARGV[1]), redis.call('HLEN', prompts) == count and 1 or 0}
"""
)

COUNT_PROMPTS: Final = (
    _COMMON
    + """
local left = redis.call('PTTL', meta)
if left == -2 then
  redis.call('DEL', prompts)
  return 'gone'
end
redis.call('HSET', meta, 'prompts', redis.call('HLEN', prompts))
if left > 0 then redis.call('PEXPIRE', prompts, left) end
return 'done'
"""
)

FORGET_PLACE: Final = (
    _COMMON
    + """
local list, place = KEYS[3], ARGV[1]
if redis.call('HGET', meta, 'place') ~= place then redis.call('ZREM', list, place) end
return 'done'
"""
)
