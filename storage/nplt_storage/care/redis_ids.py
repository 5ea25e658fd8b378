"""Which conversations a Redis holds, of all users.

Serving never goes through the keys of a database; whoever moves all of it must,
once, in small steps that keep nobody else waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode

from nplt_storage.errors import StorageUnavailable
from nplt_storage.ids import is_session_id
from nplt_storage.redis_streams.keys import Keyspace

DEFAULT_PREFIX: Final = "nplt:"
SCHEMES: Final = ("redis", "rediss", "unix")
_KEYS_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    url: str
    key_prefix: str


def is_redis_url(text: str) -> bool:
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme in SCHEMES


def parse_redis_url(text: str) -> RedisAddress:
    """`redis://host:port/0?key_prefix=chat:`; the rest is the client's."""
    base, _, query = text.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    prefixes = [value for name, value in options if name == "key_prefix"]
    rest = urlencode([option for option in options if option[0] != "key_prefix"])
    return RedisAddress(
        url=f"{base}?{rest}" if rest else base,
        key_prefix=prefixes[-1] if prefixes else DEFAULT_PREFIX,
    )


def ids_in_redis(address: RedisAddress) -> list[str]:
    """Blocks."""
    import redis  # an extra: whoever has no Redis does not need it

    keyspace = Keyspace(address.key_prefix)
    ending = keyspace.of("").meta.removeprefix(address.key_prefix)
    pattern = _as_it_is(address.key_prefix) + "*" + ending
    found: set[str] = set()
    try:
        with redis.Redis.from_url(address.url, protocol=2) as client:
            for key in client.scan_iter(match=pattern, count=_KEYS_AT_ONCE):
                name = bytes(key).decode("utf-8", "replace")
                session_id = name.removeprefix(address.key_prefix).removesuffix(ending)
                if is_session_id(session_id):
                    found.add(session_id)
    except redis.RedisError as error:
        raise StorageUnavailable(f"Redis can't be read: {type(error).__name__}") from error
    return sorted(found)


def _as_it_is(text: str) -> str:
    """For a pattern that means just this text."""
    return "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in text)
