"""The person's own settings: `~/.config/nplt/client.toml`, if there is one.

    server = "nplts://chat.example.org:9999"
    token_file = "~/.config/nplt/token"

The token belongs to that server: it is never sent to another one. What the
command line and the environment say goes before all of this.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nplt_client.errors import ConfigurationError
from nplt_client.settings import own_settings_path

KNOWN = ("server", "token_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    path: Path
    exists: bool = False
    server: str | None = None
    token_file: str | None = None
    mistakes: tuple[str, ...] = ()


def config_path(environ: Mapping[str, str] = os.environ) -> Path:
    return Path(own_settings_path(environ))


def read_config(environ: Mapping[str, str] = os.environ) -> ClientConfig:
    """What it says, and every mistake in it; raises nothing."""
    path = config_path(environ)
    if not path.exists():
        return ClientConfig(path=path)
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return ClientConfig(path=path, exists=True, mistakes=(f"{path}: {why}",))
    texts = {name: said[name] for name in KNOWN if isinstance(said.get(name), str)}
    mistakes = tuple(_mistake(path, name) for name in said if name not in texts)
    return ClientConfig(path=path, exists=True, mistakes=mistakes, **texts)


def sound_config(environ: Mapping[str, str] = os.environ) -> ClientConfig:
    config = read_config(environ)
    if config.mistakes:
        raise ConfigurationError(config.mistakes[0])
    return config


def _mistake(path: Path, name: str) -> str:
    if name in KNOWN:
        return f"{path}: {name} is a text in quotation marks"
    near = difflib.get_close_matches(name, KNOWN, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; it knows {' and '.join(KNOWN)}"
    return f"{path}: there is no setting {name!r}{hint}"
