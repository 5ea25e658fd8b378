"""`nplt config path | show | check`: which settings hold, and where they come from.

A token is never shown, only whether there is one and who named it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from nplt_client.config_file import config_path, read_config
from nplt_client.errors import ConfigurationError
from nplt_client.settings import find_address, find_reconnect_seconds, find_token, parse_url
from nplt_client.tables import pairs
from nplt_client.terminal import say


def print_path() -> None:
    print(config_path())


def print_settings(environ: Mapping[str, str] = os.environ) -> None:
    config = read_config(environ)
    print(
        pairs(
            [
                ("file", f"{config.path}{'' if config.exists else ' (not there)'}"),
                ("server", _told(environ.get("NPLT_SERVER"), "NPLT_SERVER") or _server(environ)),
                ("token", _token(environ)),
                ("reconnect", _reconnecting(environ)),
            ]
        )
    )


def _told(value: str | None, by: str) -> str | None:
    return f"{value} ({by})" if value else None


def _reconnecting(environ: Mapping[str, str]) -> str:
    seconds = environ.get("NPLT_RECONNECT_SECONDS")
    return f"for {seconds} s (NPLT_RECONNECT_SECONDS)" if seconds else "by itself (default)"


def _server(environ: Mapping[str, str]) -> str:
    config = read_config(environ)
    if config.server:
        return f"{config.server} (file)"
    return f"{find_address(None, environ)} (default; started in the background when needed)"


def _token(environ: Mapping[str, str]) -> str:
    for name in ("NPLT_TOKEN", "NPLT_TOKEN_FILE"):
        if environ.get(name):
            return f"there is one ({name})"
    config = read_config(environ)
    return f"in {config.token_file} (file)" if config.token_file else "none"


def check(environ: Mapping[str, str] = os.environ) -> int:
    """All mistakes, one sentence each."""
    mistakes = list(dict.fromkeys(_mistakes(environ)))
    for mistake in mistakes:
        say(f"nplt: {mistake}")
    if not mistakes:
        say(f"nothing wrong ({find_address(None, environ)})")
    return ConfigurationError.exit_code if mistakes else 0


def _mistakes(environ: Mapping[str, str]) -> Iterator[str]:
    config = read_config(environ)
    yield from config.mistakes
    try:
        if config.server:
            parse_url(config.server)
    except ConfigurationError as error:
        yield f"{config.path}: server: {error.message}"
        return
    if config.token_file and not config.server:
        yield f"{config.path}: token_file is for the server of this file, and it names none"
    try:
        find_reconnect_seconds(None, environ)
        find_token(None, environ, address=find_address(None, environ))
    except ConfigurationError as error:
        yield error.message
