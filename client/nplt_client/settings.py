"""Where the server is, and who we are to it.

An address comes from the command line, else from `NPLT_SERVER`, else from the
person's own settings (`config_file`), else it is the default one on this
machine, which is the only one for which a server may be started in the
background (`Address.is_default`). A token comes from the caller, else
`NPLT_TOKEN`, else the file that `NPLT_TOKEN_FILE` names, else, for the server
of the person's own settings, the file named there.

How long a lost server is looked for is in `NPLT_RECONNECT_SECONDS`.

Pure but for reading those files: the environment is handed in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nplt_client.errors import ConfigurationError

if TYPE_CHECKING:
    from nplt_client.config_file import ClientConfig

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9999
DEFAULT_URL = f"nplt://{DEFAULT_HOST}:{DEFAULT_PORT}"
DEFAULT_TIMEOUT_SECONDS = 30.0
DEFAULT_CLIENT_NAME = "nplt-client/1"
RECONNECT_SECONDS_MAX = 60.0
"""For commands that nobody sits in front of."""
SILENCE_SECONDS_MAX = 30.0
"""A server that says nothing for so long is asked for a sign of life; twice that, it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    host: str
    port: int
    tls: bool = False
    session: str | None = None
    is_default: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'nplts' if self.tls else 'nplt'}://{host}:{self.port}"


def parse_url(url: str) -> Address:
    scheme, found, rest = url.strip().partition("://")
    place, _, session = rest.partition("/")
    host, port = _split_place(place)
    if not (found and scheme in ("nplt", "nplts") and _is_host(host) and _is_name(session)):
        raise ConfigurationError(
            f"{url!r} is not a server address; one looks like nplt://host:9999, "
            "nplts://host:9999 (TLS) or nplt://host:9999/conversation"
        )
    return Address(
        host=host,
        port=_port(port or str(DEFAULT_PORT), f"{url!r}: a port"),
        tls=scheme == "nplts",
        session=_unquoted(session) if session else None,
    )


def _split_place(place: str) -> tuple[str, str]:
    """`host`, `host:port`, `[::1]` or `[::1]:port`; what fits none has no host."""
    if not place.startswith("["):
        host, colon, port = place.partition(":")
        return ("", "") if colon and not port else (host, port)
    host, closed, rest = place[1:].partition("]")
    is_whole = closed and ":" in host and (not rest or (rest[0] == ":" and rest[1:]))
    return (host, rest[1:]) if is_whole else ("", "")


def _is_host(host: str) -> bool:
    return bool(host) and not any(c.isspace() or c in "[]@?#/\\" for c in host)


def _is_name(session: str) -> bool:
    return not any(c in "/?#" for c in session)


def _port(said: str, what: str) -> int:
    if not (said.isascii() and said.isdecimal() and 1 <= int(said[:6]) <= 65_535):
        raise ConfigurationError(f"{what} is a number from 1 to 65535, not {said!r}")
    return int(said)


def _unquoted(text: str) -> str:
    from urllib.parse import unquote  # rarely needed, and slow to load

    return unquote(text)


def find_address(argument: str | None, environ: Mapping[str, str] = os.environ) -> Address:
    if argument:
        return parse_url(argument)
    if named := environ.get("NPLT_SERVER"):
        try:
            return parse_url(named)
        except ConfigurationError as error:
            raise ConfigurationError(f"NPLT_SERVER: {error.message}") from None
    if (own := _own_settings(environ)) is not None and own.server:
        return parse_url(own.server)
    return replace(parse_url(DEFAULT_URL), port=_default_port(environ), is_default=True)


def own_settings_path(environ: Mapping[str, str]) -> str:
    folder = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME') or '~'}/.config"
    return f"{folder}/nplt/client.toml"


def _own_settings(environ: Mapping[str, str]) -> ClientConfig | None:
    """Most people have no such file; then nothing is loaded to read it."""
    if not os.access(own_settings_path(environ), os.F_OK):
        return None
    from nplt_client.config_file import sound_config

    return sound_config(environ)


def _default_port(environ: Mapping[str, str]) -> int:
    """The server's own setting, so that both halves agree about an unnamed server."""
    return _port(environ.get("NPLT_LISTEN__PORT") or str(DEFAULT_PORT), "NPLT_LISTEN__PORT")


def find_reconnect_seconds(
    usual: float | None, environ: Mapping[str, str] = os.environ
) -> float | None:
    """How long a lost server is looked for. 0: not at all; None: for ever."""
    said = environ.get("NPLT_RECONNECT_SECONDS")
    if not said:
        return usual
    if not (said.isascii() and said.isdecimal()):
        raise ConfigurationError(f"NPLT_RECONNECT_SECONDS is a whole number, not {said!r}")
    return float(said)


def find_token(
    argument: str | None, environ: Mapping[str, str] = os.environ, *, address: Address | None = None
) -> str | None:
    """For the server at that address."""
    if argument:
        return argument
    if token := environ.get("NPLT_TOKEN"):
        return token.strip()
    if path := environ.get("NPLT_TOKEN_FILE"):
        return _token_in(path, "NPLT_TOKEN_FILE")
    own = None if address is None or address.is_default else _own_settings(environ)
    if own and own.token_file and own.server and str(parse_url(own.server)) == str(address):
        return _token_in(own.token_file, f"{own.path}: token_file")
    return None


def _token_in(path: str, named_by: str) -> str:
    from pathlib import Path  # rarely needed, and slow to load

    try:
        token = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{named_by}: can't read {path}: {error}") from None
    if not token:
        raise ConfigurationError(f"{named_by}: {path} is empty")
    return token
