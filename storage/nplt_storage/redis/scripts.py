"""The keys of a conversation, and the Lua scripts: each script is one atomic step.

Every script gets the six keys of the conversation in KEYS, then, where there is a second
place (the trash, a stream being built), the six keys there. It touches no other key. It
returns a word, or what was asked for:

    done    it was done
    gone    there is no such conversation
    taken   there is one already
    held    another server owns it (with its token and server): nothing changed
    fenced  the token is not the owner's: nothing changed
    stale   the head is not what the writer believes: nothing changed
    sent    a prompt with this message_id is there already: nothing changed
    lost    the entry at the head is missing, which is noted: nothing else changed
    gap     the text of the running call is not as long as the writer believes: nothing changed

Scripts for writers first get the writer's token and the length of its lease, which begins
again when they are done. All checks come before the first write, so a script does not fail
halfway.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct


class Keys(NamedTuple):
    """The keys of one conversation: in use, in the trash, or being built."""

    meta: str
    log: str
    live: str
    prompts: str
    blobs: str
    owner: str


IN_TRASH: Final = "@trash:"
TRIAL: Final = "@try:"


UserKey: TypeAlias = Literal[
    "user", "deleted", "turns", "rate", "redacted", "attention", "later", "changes"
]


class Keyspace(Struct, frozen=True):
    prefix: str

    def of(self, session_id: str, place: str = "") -> Keys:
        """The keys of a conversation in use, or in another place. All have the id as hash tag."""
        base = f"{self.prefix}{place}{{{session_id}}}"
        return Keys(*(f"{base}:{part}" for part in Keys._fields))

    def of_user(self, what: UserKey, user: str) -> str:
        return f"{self.prefix}@{what}:{user}"

    @property
    def members(self) -> str:
        return f"{self.prefix}@members"

    @property
    def id_key(self) -> str:
        return f"{self.prefix}@id_key"


_COMMON: Final = """
local meta, log, live, prompts, blobs, owner = unpack(KEYS, 1, 6)
local here, there = {unpack(KEYS, 1, 5)}, {unpack(KEYS, 7, 11)}

-- All keys of a conversation go at the same instant; 0: they stay.
local function expire(keys, milliseconds)
  milliseconds = tonumber(milliseconds)
  local now = redis.call('TIME')
  local at = now[1] * 1000 + math.floor(now[2] / 1000) + milliseconds
  for _, key in ipairs(keys) do
    if milliseconds > 0 then
      redis.call('PEXPIREAT', key, string.format('%.0f', at))
    else
      redis.call('PERSIST', key)
    end
  end
end

local function used(ttl)
  if tonumber(ttl) > 0 then expire(here, ttl) end
end

-- Tells the servers that watch the user's rows. A Redis user who may not publish may still write.
local function tell(channel, change)
  redis.pcall('PUBLISH', channel, change)
end

-- The second line of a row has what servers of an older version do not know.
local function note_row(lines, ...)
  local first, second = lines:match('^([^\\n]*)\\n(.*)$')
  redis.call('HSET', meta, 'row', first, 'row_added', second, ...)
end

local function move(from, to)
  for place, key in ipairs(from) do
    if redis.call('EXISTS', key) == 1 then
      redis.call('RENAME', key, to[place])
    else
      redis.call('DEL', to[place])
    end
  end
end

-- `dead` is the token of a holder whose process is known to be dead.
local function held_by_another(server, dead)
  local holder = redis.call('HMGET', owner, 'token', 'server')
  if holder[1] and holder[2] ~= server and holder[1] ~= dead then
    return {'held', holder[1], holder[2]}
  end
end

local function token_after(before, nonce)
  return string.format('%.0f:%s', string.match(before or '0', '^%d+') + 1, nonce)
end

local function own(token, server, lease)
  redis.call('HSET', meta, 'token', token)
  redis.call('DEL', owner)
  redis.call('HSET', owner, 'token', token, 'server', server)
  redis.call('PEXPIRE', owner, lease)
  return token
end
"""


def _of_conversation(script: str) -> str:
    return _COMMON + script


_WRITER: Final = _of_conversation("""
local token, lease = ARGV[1], ARGV[2]
if redis.call('EXISTS', meta) == 0 then return 'gone' end
if redis.call('HGET', owner, 'token') ~= token then return 'fenced' end

local function done()
  redis.call('PEXPIRE', owner, lease)
  return 'done'
end

local function digest_at(seq)
  local found = redis.call('XRANGE', log, seq, seq)[1]
  return found and redis.sha1hex(found[2][2]) or 'none'
end

-- Takes the entry at the head back if it is one of those whose writer never
-- heard whether they arrived: their digests, and the message_id of each.
local function take_back(seq, doubts)
  local name = doubts[digest_at(seq)]
  if not name then return false end
  redis.call('XDEL', log, redis.call('XRANGE', log, seq, seq)[1][1])
  redis.call('HSET', meta, 'head', seq - 1)
  if name ~= '' and redis.call('HDEL', prompts, name) == 1 then
    redis.call('HINCRBY', meta, 'prompts', -1)
  end
  return true
end

-- How many there are is counted apart: if Redis evicts them, that shows.
local function note_prompt(name, noted)
  local added = redis.call('HSET', prompts, name, noted)
  if redis.call('HEXISTS', meta, 'prompts') == 1 then
    redis.call('HINCRBY', meta, 'prompts', added)
  end
end
""")


def _of_writer(script: str) -> str:
    return _WRITER + script


# A creator that never heard whether it succeeded asks again with the same nonce, and gets
# the one it made, if that is as empty as on its first day.
CREATE: Final = _of_conversation("""
local nonce, server, lease, row, user, origin, ttl, channel, change = unpack(ARGV)
local known, token = redis.call('HMGET', meta, 'head', 'token'), token_after(nil, nonce)
if known[1] and (known[1] ~= '0' or known[2] ~= token) then return 'taken' end
redis.call('DEL', unpack(here))
note_row(row, 'user', user, 'origin', origin, 'head', 0, 'prompts', 0)
redis.call('HSET', meta, 'seen', 0, 'released', '')
own(token, server, lease)
expire(here, ttl)
tell(channel, change)
return token
""")

OPEN: Final = _of_conversation("""
local server, dead, nonce, lease, ttl = unpack(ARGV)
if redis.call('EXISTS', meta) == 0 then return 'gone' end
local held = held_by_another(server, dead)
if held then return held end
local before = redis.call('HMGET', meta, 'token', 'released')
local token = own(token_after(before[1], nonce), server, lease)
used(ttl)
local head, seen = unpack(redis.call('HMGET', meta, 'head', 'seen'))
if not seen or tonumber(seen) > tonumber(head) then redis.call('HSET', meta, 'seen', head) end
local known = redis.call('HMGET', meta, 'row', 'row_added', 'accessed', 'damaged', 'checkpoint')
known[6] = redis.call('GET', live)
known[7] = token
known[8] = before[1] and before[2] and before[1] ~= before[2] and 1 or 0
return known
""")

# An owner whose lease has lapsed, or who did not hear whether it got it back.
RECLAIM: Final = _of_conversation("""
local nonce, server, lease, before = unpack(ARGV)
if redis.call('EXISTS', meta) == 0 then return 'gone' end
local known, token = redis.call('HGET', meta, 'token'), token_after(before, nonce)
if known ~= before and known ~= token then return 'fenced' end
return own(token, server, lease)
""")

_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""


def _with_time(script: str) -> str:
    return _NOW + script


# Gives 0 if it is not the owner's, else 1, or the server that has asked for it.
RENEW: Final = _with_time("""
local known = redis.call('HMGET', KEYS[1], 'token', 'wanted', 'wanted_until')
if known[1] ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return known[2] and tonumber(known[3]) > now and known[2] or 1
""")

# Asks the owner, which has this token, for a conversation.
ASK_FOR: Final = _with_time("""
local token, server, lasts = unpack(ARGV)
if redis.call('HGET', KEYS[1], 'token') ~= token then return 0 end
redis.call('HSET', KEYS[1], 'wanted', server, 'wanted_until', string.format('%.0f', now + lasts))
return 1
""")

# With a server that has asked for it: for that long no other can have it. The token that
# stands there meanwhile is nobody's. `released` tells the next owner that this one gave it up.
RELEASE: Final = """
local token, server, lasts = unpack(ARGV)
if redis.call('HGET', KEYS[1], 'token') ~= token then return 'done' end
redis.call('DEL', KEYS[1])
if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('HSET', KEYS[2], 'released', token) end
if server ~= '' then
  redis.call('HSET', KEYS[1], 'token', token .. ':released', 'server', server)
  redis.call('PEXPIRE', KEYS[1], lasts)
end
return 'done'
"""

APPEND: Final = _of_writer("""
local seq, line, row, ttl, forget, doubts, first, name, channel, change, busy = unpack(ARGV, 3)
local head = tonumber(redis.call('HGET', meta, 'head'))
seq, doubts = tonumber(seq), cjson.decode(doubts)
if head == seq then
  local digest = digest_at(seq)
  if digest == redis.sha1hex(line) and doubts[digest] then return done() end
  if take_back(seq, doubts) then
    head = seq - 1
    change = change:gsub('^%S+', 'redacted') -- what was read of it counts no longer
  end
end
if head ~= seq - 1 then return 'stale' end
if name ~= '' and redis.call('HEXISTS', prompts, name) == 1 then return 'sent' end
local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
if head >= tonumber(first) and not (last and last[1]:match('^(%d+)-') == tostring(head)) then
  redis.call('HSET', meta, 'damaged', 'entry ' .. head .. ' is not there')
  return 'lost'
end
-- The id of an entry that was taken back can't be used again.
local part, added = 0, nil
repeat
  added = redis.pcall('XADD', log, seq .. '-' .. part, 'line', line)
  part = part + 1
until not (type(added) == 'table' and added.err and added.err:find('equal or smaller'))
if type(added) == 'table' and added.err then return added end
note_row(row, 'head', seq)
if KEYS[7] then redis.call('SADD', KEYS[7], busy) end
if name ~= '' then note_prompt(name, '[' .. seq .. ']') end
if forget == '1' then redis.call('DEL', live) end
used(ttl)
tell(channel, change)
return done()
""")

SETTLE: Final = _of_writer("""
local seq, row, doubts, channel, change = unpack(ARGV, 3)
local head = tonumber(redis.call('HGET', meta, 'head'))
seq = tonumber(seq)
if head == seq - 1 then return done() end -- it has not arrived
if head ~= seq then return 'stale' end
if take_back(seq, cjson.decode(doubts)) then
  note_row(row)
  tell(channel, change)
end
return done()
""")

TRIM: Final = _of_writer("""
local head, first, checkpoint, row, ttl = unpack(ARGV, 3)
if redis.call('HGET', meta, 'head') ~= head then return 'stale' end
note_row(row, 'checkpoint', checkpoint)
redis.call('XTRIM', log, 'MINID', first .. '-0')
for place = 8, #ARGV, 2 do redis.call('HSET', prompts, ARGV[place], ARGV[place + 1]) end
used(ttl)
return done()
""")

# Appends to the text of the running call, of which that many bytes must be there already; 0: it is
# written anew.
APPEND_LIVE: Final = _of_writer("""
local at, pieces = unpack(ARGV, 3)
local left = redis.call('PTTL', meta)
if at == '0' then
  redis.call('SET', live, pieces)
elseif redis.call('STRLEN', live) ~= tonumber(at) then
  return 'gap'
else
  redis.call('APPEND', live, pieces)
end
if left > 0 then redis.call('PEXPIRE', live, left) end
return done()
""")

# The commands of the other scripts, on keys made for this. Names the first that is refused, which
# Redis 6.2 does not.
TRY_COMMANDS: Final = _of_conversation("""
local commands = {
  {'TIME'},
  {'HSET', meta, 'row', '', 'prompts', 0},
  {'HMGET', meta, 'row'},
  {'HGET', meta, 'row'},
  {'HGETALL', meta},
  {'HEXISTS', meta, 'row'},
  {'HINCRBY', meta, 'prompts', 1},
  {'HLEN', meta},
  {'HDEL', meta, 'row'},
  {'PEXPIRE', meta, 1000},
  {'PEXPIREAT', meta, 9999999999999},
  {'PTTL', meta},
  {'PERSIST', meta},
  {'XADD', log, '1-0', 'line', ''},
  {'XRANGE', log, 1, 1},
  {'XREVRANGE', log, '+', '-', 'COUNT', 1},
  {'XDEL', log, '1-0'},
  {'XTRIM', log, 'MINID', '1-0'},
  {'SET', live, ''},
  {'GET', live},
  {'APPEND', live, 'x'},
  {'STRLEN', live},
  {'RENAME', live, prompts},
  {'ZADD', blobs, 0, 'x'},
  {'ZCARD', blobs},
  {'ZSCORE', blobs, 'x'},
  {'ZREMRANGEBYSCORE', blobs, '-inf', '0'},
  {'EXISTS', meta},
}
for _, command in ipairs(commands) do
  local reply = redis.pcall(unpack(command))
  if type(reply) == 'table' and reply.err then
    redis.pcall('DEL', unpack(here))
    return redis.error_reply('NOPERM the command ' .. command[1] .. ' failed: ' .. reply.err)
  end
end
redis.call('DEL', unpack(here))
return 'done'
""")

KEEP_BLOB: Final = _of_writer("""
local blob_id, data, ttl = unpack(ARGV, 3)
redis.call('HSET', blobs, blob_id, data)
used(ttl)
return done()
""")

# A piece of an attached file; the conversation's blobs are in the same hash.
KEEP_FILE_PIECE: Final = _of_conversation("""
local piece, data, ttl = unpack(ARGV)
if redis.call('EXISTS', meta) == 0 then return 'gone' end
redis.call('HSET', blobs, piece, data)
used(ttl)
return 'done'
""")

NOTE_DAMAGE: Final = _of_writer("""
redis.call('HSET', meta, 'damaged', ARGV[3])
tell(ARGV[4], ARGV[5])
return done()
""")

REWRITE: Final = _of_writer("""
local head, checkpoint, row, origin, ttl, channel, change = unpack(ARGV, 3)
if redis.call('HGET', meta, 'head') ~= head then return 'stale' end
redis.call('RENAME', there[2], log)
if checkpoint ~= '' then redis.call('HSET', meta, 'checkpoint', checkpoint) end
redis.call('DEL', unpack(there))
note_row(row, 'origin', origin)
for place = 10, #ARGV do redis.call('HDEL', blobs, ARGV[place]) end
expire(here, ttl)
tell(channel, change)
return done()
""")

TOUCH: Final = _of_conversation("""
local at, ttl = unpack(ARGV)
if redis.call('EXISTS', meta) == 0 then return 'gone' end
local known = redis.call('HGET', meta, 'accessed')
if not known or known < at then redis.call('HSET', meta, 'accessed', at) end
used(ttl)
return 'done'
""")

# Whoever deletes owns it for that moment.
DELETE: Final = _of_conversation("""
local server, dead, ttl, at, channel, change = unpack(ARGV)
if redis.call('EXISTS', meta) == 0 then return 'gone' end
local held = held_by_another(server, dead)
if held then return held end
redis.call('HSET', meta, 'deleted', at)
move(here, there)
redis.call('DEL', owner)
expire(there, ttl)
tell(channel, change)
return 'done'
""")

UNDELETE: Final = _of_conversation("""
if redis.call('EXISTS', there[1]) == 0 then return 'gone' end
if redis.call('EXISTS', meta) == 1 then return 'taken' end
move(there, here)
redis.call('HDEL', meta, 'deleted')
expire(here, ARGV[1])
tell(ARGV[2], ARGV[3])
return 'done'
""")

PUBLISH: Final = _of_conversation("""
local row, user, origin, head, checkpoint, ttl, channel, change = unpack(ARGV)
if redis.call('EXISTS', meta) == 1 then return 'taken' end
move(there, here)
note_row(row, 'user', user, 'origin', origin, 'head', head)
redis.call('HSET', meta, 'prompts', redis.call('HLEN', prompts))
if checkpoint ~= '' then redis.call('HSET', meta, 'checkpoint', checkpoint) end
expire(here, ttl)
tell(channel, change)
return 'done'
""")

# How far the user has seen it; any server may note that.
SEEN: Final = _of_conversation("""
local seq, unread, channel, change = unpack(ARGV)
local head, known = unpack(redis.call('HMGET', meta, 'head', 'seen'))
if not head then return 'gone' end
head = tonumber(head)
known, seq = math.min(tonumber(known or head), head), math.min(tonumber(seq), head)
if unread == '0' and seq < known then seq = known end
if seq ~= known then tell(channel, change) end
redis.call('HSET', meta, 'seen', seq)
return seq
""")

# What servers know of each other. These have one key each, in slots of their own.

# Notes a server (its id, how it is) for so many milliseconds, unless the id is empty; gives all
# that are noted, and drops those that were not noted again in time.
MEMBERS: Final = _with_time("""
local id, described, lasts = unpack(ARGV)
if id ~= '' then
  redis.call('HSET', KEYS[1], id, string.format('%.0f %s', now + lasts, described))
  redis.call('PEXPIRE', KEYS[1], lasts)
end
local noted, there = redis.call('HGETALL', KEYS[1]), {}
for place = 1, #noted, 2 do
  local until_, what = string.match(noted[place + 1], '^(%d+) (.*)$')
  if tonumber(until_) > now then
    there[#there + 1] = what
  else
    redis.call('HDEL', KEYS[1], noted[place])
  end
end
return there
""")

# A user's running turns, of all servers: each is noted until a time, and noted again.
# Gives how many slots are left after it, or -1 if there was none.
TAKE_TURN: Final = _with_time("""
local turn, turns_max, lasts = unpack(ARGV)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local is_there = redis.call('ZSCORE', KEYS[1], turn)
local left = tonumber(turns_max) - redis.call('ZCARD', KEYS[1])
if not is_there then left = left - 1 end
if left < 0 and not is_there then return -1 end
redis.call('ZADD', KEYS[1], now + lasts, turn)
redis.call('PEXPIRE', KEYS[1], lasts)
return math.max(left, 0)
""")

KEEP_TURNS: Final = _with_time("""
for place = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', now + ARGV[1], ARGV[place]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 'done'
""")

# A bucket that holds `size` and gains as many in so many milliseconds; it may be overdrawn once
# over. Gives what is left, in thousandths.
COUNT_PROMPT: Final = _with_time("""
local size, lasts = tonumber(ARGV[1]), tonumber(ARGV[2])
local known = redis.call('HMGET', KEYS[1], 'left', 'at')
local left = tonumber(known[1] or size) + (now - tonumber(known[2] or now)) * size / lasts
left = math.max(math.min(left, size) - 1, -size)
redis.call('HSET', KEYS[1], 'left', tostring(left), 'at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], lasts * 2)
return math.floor(left * 1000)
""")

BLOB: Final = _of_conversation("""
local data = redis.call('HGET', blobs, ARGV[1])
return data and string.sub(data, ARGV[2] + 1, ARGV[2] + ARGV[3])
""")

PROMPT_BY_MESSAGE_ID: Final = _of_conversation("""
local count = tonumber(redis.call('HGET', meta, 'prompts') or -1)
return {redis.call('HGET', prompts, ARGV[1]), redis.call('HLEN', prompts) == count and 1 or 0}
""")

COUNT_PROMPTS: Final = _of_conversation("""
local left = redis.call('PTTL', meta)
if left == -2 then
  redis.call('DEL', prompts)
  return 'gone'
end
redis.call('HSET', meta, 'prompts', redis.call('HLEN', prompts))
if left > 0 then redis.call('PEXPIRE', prompts, left) end
return 'done'
""")

# From the layout before, whose keys had no hash tag: so never in a cluster. KEYS has the
# six of the new layout, then the seven of the old one, then its blobs, in the order of ARGV.
ADOPT: Final = _of_conversation("""
local before = {unpack(KEYS, 7, 10)}
local old_blobs, checkpoint, old_owner = unpack(KEYS, 11, 13)
if redis.call('EXISTS', before[1]) == 0 or redis.call('EXISTS', meta) == 1 then return 'gone' end
if redis.call('EXISTS', old_owner) == 1 then return 'held' end
for place, key in ipairs(before) do
  if redis.call('EXISTS', key) == 1 then redis.call('RENAME', key, here[place]) end
end
local line = redis.call('GET', checkpoint)
if line then redis.call('HSET', meta, 'checkpoint', line) end
for place, blob_id in ipairs(ARGV) do
  local data = redis.call('GET', KEYS[13 + place])
  if data then redis.call('HSET', blobs, blob_id, data) end
  redis.call('DEL', KEYS[13 + place])
end
redis.call('DEL', old_blobs, checkpoint)
redis.call('HDEL', meta, 'rev', 'place')
local left = redis.call('PTTL', meta)
if left > 0 then redis.call('PEXPIRE', blobs, left) end
return 'done'
""")
