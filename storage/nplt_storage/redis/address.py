"""Reads the address of a Redis. Needs no Redis client.

    redis://[user:password@]host:port/db                            one Redis; also unix://
    redis+sentinel://[user:password@]host:port,host:port/service/db the primary that Sentinel names
    redis+cluster://[user:password@]host:port,host:port             a cluster; some of its nodes

`rediss` stands for TLS. Options of the client follow as ?name=value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

from msgspec import Struct

KINDS: Final[Mapping[str, Literal["single", "sentinel", "cluster"]]] = {
    "redis": "single",
    "rediss": "single",
    "unix": "single",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}
DEFAULT_PREFIX: Final = "nplt:"
_SENTINEL_OPTIONS: Final = {"sentinel_username": "username", "sentinel_password": "password"}


class RedisAddress(Struct, frozen=True, kw_only=True):
    kind: Literal["single", "sentinel", "cluster"]
    urls: tuple[str, ...]
    """One URL per host, as clients of a single Redis read them."""
    service: str = ""
    sentinel_options: Mapping[str, str] = {}


def is_redis_url(text: str) -> bool:
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme in KINDS


def split_key_prefix(text: str) -> tuple[str, str]:
    """Splits `redis://host:port/0?key_prefix=chat:` into a URL and a prefix."""
    base, _, query = text.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    prefixes = [value for name, value in options if name == "key_prefix"]
    rest = urlencode([option for option in options if option[0] != "key_prefix"])
    return f"{base}?{rest}" if rest else base, prefixes[-1] if prefixes else DEFAULT_PREFIX


def read_address(url: str) -> RedisAddress:
    """Raises `ValueError` with the reason, which never repeats a password."""
    scheme = url.partition("://")[0]
    kind = KINDS.get(scheme)
    if kind is None:
        raise ValueError("begins with redis://, rediss:// or unix://")
    if kind == "single":
        return RedisAddress(kind=kind, urls=(_checked(url),))
    parts = urlsplit(url)
    credentials, separator, hosts = parts.netloc.rpartition("@")
    service, _, db = parts.path.strip("/").partition("/")
    if kind == "sentinel" and not service:
        raise ValueError("names no service: redis+sentinel://host:port,host:port/service")
    if kind == "cluster" and service:
        raise ValueError("names a database, which a cluster does not have")
    options = parse_qsl(parts.query, keep_blank_values=True)
    query = urlencode([option for option in options if option[0] not in _SENTINEL_OPTIONS])
    plain = scheme.partition("+")[0]
    tail = (f"/{db}" if db else "") + (f"?{query}" if query else "")
    return RedisAddress(
        kind=kind,
        urls=tuple(
            _checked(f"{plain}://{credentials}{separator}{host}{tail}") for host in hosts.split(",")
        ),
        service=service,
        sentinel_options={
            _SENTINEL_OPTIONS[name]: value for name, value in options if name in _SENTINEL_OPTIONS
        },
    )


def _checked(url: str) -> str:
    try:
        _ = urlsplit(url).port
    except ValueError:
        # Not the original message: after a slash in a password, it quotes part of the password.
        raise ValueError(
            "has a host or port that can't be read (in a password, / ? and # "
            "are written %2F, %3F and %23)"
        ) from None
    return url
