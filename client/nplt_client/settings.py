"""Finds the server's address and the token.

Order: the command line, then the environment (`NPLT_SERVER`, `NPLT_TOKEN`,
`NPLT_TOKEN_FILE`, `NPLT_CA_FILE`), then `~/.config/nplt/client.toml`, then the server of
this user that runs on this machine (`server.json`), then the address in the server's
settings. The file's token belongs to the file's server and is never sent to another one.
Without an address a server may be started (`Address.is_default`).
`NPLT_RECONNECT_SECONDS` limits how long a client tries to reconnect. The rules for naming
a conversation on the command line are here too. Nothing here writes files or opens a
connection. The short commands load this module, so `tomllib` and `yaml` are imported only
when there is a file to read, and `pathlib` never.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import sys
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import MsgspecError, Struct, json
from msgspec.structs import replace

from nplt_client.errors import ConfigurationError, RequestRefused

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9999
DEFAULT_URL = f"nplt://{DEFAULT_HOST}:{DEFAULT_PORT}"
DEFAULT_TIMEOUT_SECONDS = 30.0
DEFAULT_CLIENT_NAME = "nplt-client/1"
COMMAND_NAME = "nplt/1"
"""The client name of the commands and chats of `nplt`."""
LAST = "@last"
"""Stands for the conversation that was used last; the server knows which one that is."""
DELETE_PREFIX_MIN = 8
"""The shortest prefix of an id by which a conversation can be deleted."""
RECONNECT_SECONDS_MAX = 60.0
"""How long commands such as `nplt ask` try to reconnect."""
SILENCE_SECONDS_MAX = 30.0
"""A server is sent a PING after this silence; after twice as long the connection is lost."""


class Address(Struct, frozen=True, kw_only=True):
    host: str
    port: int
    """0: the one that ssh chooses."""
    tls: bool = False
    over_ssh: bool = False
    """The server is that of a user of another machine, which ssh reaches."""
    user: str | None = None
    """The user at the other end of ssh, if the address names one."""
    session: str | None = None
    is_default: bool = False
    """The server of this user listens there, or would; the user named no address."""
    instance: str | None = None
    """The run of the server that the client expects there, if `server.json` names one."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.over_ssh:
            user, port = f"{self.user}@" if self.user else "", f":{self.port}" if self.port else ""
            return f"ssh://{user}{host}{port}"
        return f"{'nplts' if self.tls else 'nplt'}://{host}:{self.port}"

    @property
    def with_tls(self) -> Address:
        return replace(self, tls=True)


_URL = re.compile(
    r"(nplts?|ssh)://(?:([^\s@?#/\\:]+)@)?"
    r"(?:\[([^\s\[\]@?#/\\]*:[^\s\[\]@?#/\\]*)\]|([^\s\[\]@?#/\\:]+))"
    r"(?::([^/]+))?(?:/([^/?#]*))?"
)
"""The groups are the scheme, the user, an IPv6 host or another host, the port and the
conversation."""


def parse_url(url: str) -> Address:
    found = _URL.fullmatch(url.strip())
    if found is None or (found[2] and found[1] != "ssh"):
        raise ConfigurationError(
            f"{url!r} is not a server address; one looks like nplt://host:9999, "
            "nplts://host:9999 (TLS), ssh://host or nplt://host:9999/conversation"
        )
    scheme, user, numeric_host, named_host, port, session = found.groups()
    host, over_ssh = numeric_host or named_host, scheme == "ssh"
    if over_ssh and (host.startswith("-") or (user or "").startswith("-")):
        raise ConfigurationError(f"{url!r}: a host or user can't begin with '-'")
    if session:
        from urllib.parse import unquote  # rarely needed, and slow to load

        session = unquote(session)
    return Address(
        host=host,
        port=0 if over_ssh and not port else _port(port or str(DEFAULT_PORT), f"{url!r}: a port"),
        tls=scheme == "nplts",
        over_ssh=over_ssh,
        user=user,
        session=session or None,
    )


def _port(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:6]) <= 65_535):
        raise ConfigurationError(f"{what} is a number from 1 to 65535, not {text!r}")
    return int(text)


def find_address(argument: str | None, environ: Mapping[str, str] = os.environ) -> Address:
    if argument:
        return _named_address(argument, environ)
    if named := environ.get("NPLT_SERVER"):
        try:
            return _named_address(named, environ)
        except ConfigurationError as error:
            raise ConfigurationError(f"NPLT_SERVER: {error.message}") from None
    if (own := _own_settings(environ)).server:
        return parse_url(own.server)
    if (running := find_server(environ)) is not None:
        return running.address
    return default_address(environ)


def _named_address(text: str, environ: Mapping[str, str]) -> Address:
    """The address in a URL, or of a server that client.toml names."""
    if "://" in text:
        return parse_url(text)
    servers = _own_settings(environ).servers
    if text in servers:
        return parse_url(servers[text])
    try:
        return parse_url(text)
    except ConfigurationError as error:
        names = f"; client.toml names {', '.join(servers)}" if servers else ""
        raise ConfigurationError(f"{error.message}{names}") from None


def check_delete_target(wanted: str, *, session_id: str, name: str) -> None:
    """Refuses to delete the conversation that `wanted` named if `wanted` is too short a prefix
    of its id."""
    by_prefix = wanted not in (session_id, name, LAST)
    if by_prefix and len(wanted) < DELETE_PREFIX_MIN:
        raise RequestRefused(
            f"to delete {name!r}, give its name or at least {DELETE_PREFIX_MIN} "
            f"characters of its id ({session_id})",
            code="ambiguous",
            field="session_id",
        )


def default_address(environ: Mapping[str, str] = os.environ) -> Address:
    """The address at which a server of this user listens unless its port is taken."""
    return replace(parse_url(DEFAULT_URL), port=_default_port(environ), is_default=True)


def state_dir(environ: Mapping[str, str] = os.environ) -> str:
    """The directory with the server's `server.json`, its log, and the history of prompts."""
    if sys.platform != "linux":
        from platformdirs import user_state_dir  # slow to load

        return user_state_dir("nplt", appauthor=False)
    folder = environ.get("XDG_STATE_HOME") or f"{environ.get('HOME') or '~'}/.local/state"
    return f"{folder}/nplt"


class RunningServer(Struct, frozen=True, kw_only=True):
    """A server of this user, as its `server.json` describes it."""

    pid: int
    url: str
    http: str | None = None
    """Its address for HTTP."""
    unix: str | None = None
    instance: str | None = None

    @property
    def address(self) -> Address:
        return replace(parse_url(self.url), is_default=True, instance=self.instance)


def find_server(environ: Mapping[str, str] = os.environ) -> RunningServer | None:
    """Finds the server of this user. A server holds a lock on its file while it runs."""
    try:
        descriptor = os.open(f"{state_dir(environ)}/server.json", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            return json.decode(os.read(descriptor, 4_096), type=RunningServer)
        except MsgspecError:
            return None  # the server is still writing it
    finally:
        os.close(descriptor)
    return None  # left behind by a server that was killed


def current_address(address: Address) -> Address:
    """The address of the server now: the server of this user may have moved to another port."""
    if not address.is_default or (running := find_server()) is None:
        return address
    return replace(running.address, session=address.session)


def _config_dir(environ: Mapping[str, str]) -> str:
    folder = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME') or '~'}/.config"
    return f"{folder.rstrip('/')}/nplt"


def _own_settings(environ: Mapping[str, str]) -> ClientConfig:
    config = read_config(environ)
    if config.mistakes:
        raise ConfigurationError(config.mistakes[0])
    return config


def _default_port(environ: Mapping[str, str]) -> int:
    """Reads the server's own setting, so that both agree on the default address. Mistakes are
    ignored: the server reports those itself."""
    if text := environ.get("NPLT_LISTEN__PORT"):
        return _port(text, "NPLT_LISTEN__PORT")
    path = f"{_config_dir(environ)}/server.yaml"
    if not os.access(path, os.R_OK):
        return DEFAULT_PORT
    import yaml  # slow to load

    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            port = yaml.safe_load(file)["listen"]["port"]
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError):
        return DEFAULT_PORT
    return port if isinstance(port, int) and 1 <= port <= 65_535 else DEFAULT_PORT


def find_reconnect_seconds(
    usual: float | None, environ: Mapping[str, str] = os.environ
) -> float | None:
    """How many seconds to try to reconnect. 0: not at all; None: without end."""
    text = environ.get("NPLT_RECONNECT_SECONDS")
    if not text:
        return usual
    if not (text.isascii() and text.isdecimal()):
        raise ConfigurationError(f"NPLT_RECONNECT_SECONDS is a whole number, not {text!r}")
    return float(text)


def find_token(
    argument: str | None, environ: Mapping[str, str] = os.environ, *, address: Address | None = None
) -> str | None:
    """Finds the token for the server at that address."""
    if argument:
        return argument
    if token := environ.get("NPLT_TOKEN"):
        return token.strip()
    if path := environ.get("NPLT_TOKEN_FILE"):
        return _token_in(path, "NPLT_TOKEN_FILE")
    if address is not None and address.is_default:
        # The server makes this token on systems that can't tell the user of a connection.
        path = f"{state_dir(environ)}/token"
        return _token_in(path, "the server's token") if os.access(path, os.F_OK) else None
    if address is None:
        return None
    own = _own_settings(environ)
    if own.token_file and own.server and str(parse_url(own.server)) == str(address):
        return _token_in(own.token_file, f"{own.path}: token_file")
    return None


def _token_in(path: str, named_by: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:  # noqa: PTH111, PTH123
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & 0o077:
                raise ConfigurationError(
                    f"{named_by}: {path} can be read by others "
                    f"(mode {stat.S_IMODE(mode):04o}): chmod 600 it"
                )
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{named_by}: can't read {path}: {error}") from None
    if not token:
        raise ConfigurationError(f"{named_by}: {path} is empty")
    return token


def find_ca_file(environ: Mapping[str, str] = os.environ) -> str | None:
    """Finds the certificates of the authorities that may vouch for a server, for `nplts://`.
    `None`: those of the system, or of `SSL_CERT_FILE`, which OpenSSL reads itself."""
    path = environ.get("NPLT_CA_FILE") or _own_settings(environ).ca_file
    return os.path.expanduser(path) if path else None  # noqa: PTH111


KNOWN = ("server", "servers", "token_file", "notify", "tls")
NotifyBy: TypeAlias = Literal["bell", "osc9", "off"]
NOTIFY_BY: tuple[NotifyBy, ...] = ("bell", "osc9", "off")
"""How a chat notifies of a finished answer while another window has the focus."""


def find_notify_by(environ: Mapping[str, str] = os.environ) -> NotifyBy:
    return _own_settings(environ).notify


class ClientConfig(Struct, frozen=True, kw_only=True):
    path: str
    exists: bool = False
    server: str | None = None
    servers: Mapping[str, str] = {}
    """Addresses by the names that `--server`, `nplt chat` and `NPLT_SERVER` take."""
    token_file: str | None = None
    ca_file: str | None = None
    notify: NotifyBy = "bell"
    mistakes: tuple[str, ...] = ()


def read_config(environ: Mapping[str, str] = os.environ) -> ClientConfig:
    """Reads the settings, with every mistake in the file; raises nothing."""
    path = f"{_config_dir(environ)}/client.toml"
    if not os.access(path, os.F_OK):
        return ClientConfig(path=path)
    import tomllib  # most people have no such file

    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            values = tomllib.loads(file.read())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return ClientConfig(path=path, exists=True, mistakes=(f"{path}: {why}",))
    tls = values.pop("tls", {})
    found: dict[str, Any] = {}
    servers = values.pop("servers", {})
    if isinstance(servers, dict) and all(isinstance(url, str) for url in servers.values()):
        found["servers"] = servers
    else:
        values["servers"] = servers
    if isinstance(tls, dict) and isinstance(tls.get("ca"), str) and len(tls) == 1:
        found["ca_file"] = tls["ca"]
    elif tls:
        values["tls"] = tls
    texts = {name: values[name] for name in KNOWN if isinstance(values.get(name), str)}
    if texts.get("notify", "bell") not in NOTIFY_BY:
        del texts["notify"]
    mistakes = tuple(_mistake(path, name) for name in values if name not in texts)
    return ClientConfig(path=path, exists=True, mistakes=mistakes, **texts, **found)


def _mistake(path: str, name: str) -> str:
    if name == "notify":
        return f"{path}: notify is one of {', '.join(map(repr, NOTIFY_BY))}"
    if name == "tls":
        return f'{path}: tls takes one setting, the file of the authorities: [tls] ca = "FILE"'
    if name == "servers":
        return f'{path}: servers gives each name an address: [servers] box = "ssh://box"'
    if name in KNOWN:
        return f"{path}: {name} is a text in quotation marks"
    import difflib

    near = difflib.get_close_matches(name, KNOWN, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; it knows {' and '.join(KNOWN)}"
    return f"{path}: there is no setting {name!r}{hint}"
