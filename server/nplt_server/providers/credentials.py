"""The key of a provider, and the address it is sent to.

A key is read from a variable, or from a file that nobody else can read. It is held as a secret
until the client is made; no message from here quotes it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr

from nplt_server.settings import Settings, VendorSettings, is_loopback

_FILE_BYTES_MAX = 16_384


class KeyMistake(Exception):
    """A key can't be used; `where` is the setting to correct."""

    def __init__(self, where: str, sentence: str) -> None:
        super().__init__(sentence)
        self.where = where


def read_key(provider: VendorSettings, environ: Mapping[str, str]) -> SecretStr:
    """Empty if the settings name none: a server of one's own often needs none."""
    if provider.api_key_file is not None:
        where, holder = "api_key_file", str(provider.api_key_file)
        key = _read_file(provider.api_key_file)
    else:
        if provider.api_key_env is None and provider.base_url is not None:
            return SecretStr("")  # what is for the vendor is not for everybody
        standard = standard_variable(provider, "API_KEY")
        where, holder = "api_key_env", provider.api_key_env or standard
        key = environ.get(holder, "").strip()
        if not key:
            # Variables are written in capitals; anything else may be the key itself.
            shown = holder if holder.isupper() else "variable of that name"
            raise KeyMistake(where, f"there is no {shown} in the environment")
    # The HTTP library would say so too, and quote it.
    if any(not "!" <= character <= "~" for character in key):
        raise KeyMistake(where, f"what {holder} holds has characters that no key has")
    return SecretStr(key)


def key_source(provider: VendorSettings) -> str:
    """Says where the key is from, for the error if the provider does not accept it. A server that
    runs keeps the key that it read at its start."""
    if provider.api_key_file is not None:
        where = f"the key was read from {provider.api_key_file}; correct it"
        return f"{where}, then: nplt server restart"
    if provider.api_key_env is None and provider.base_url is not None:
        return "the settings name no key for this provider; add api_key_env or api_key_file"
    variable = provider.api_key_env or standard_variable(provider, "API_KEY")
    if not variable.isupper():  # it may be the key itself
        return "check api_key_env of the provider in the server's settings"
    return (
        f"the key came from {variable} in the server's environment; export the right one, "
        "then: nplt server restart"
    )


def known_keys(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """The keys of all providers. One that can't be read is left out: building its provider says
    why."""
    keys: list[str] = []
    for provider in settings.providers:
        if isinstance(provider, VendorSettings):
            with suppress(KeyMistake):
                keys.append(read_key(provider, environ).get_secret_value())
    return keys


def base_url_of(provider: VendorSettings, environ: Mapping[str, str]) -> str | None:
    """`None` stands for the vendor's own address. A variable such as OPENAI_BASE_URL counts
    here as it does for the vendor's own programs."""
    return provider.base_url or environ.get(standard_variable(provider, "BASE_URL")) or None


def standard_variable(provider: VendorSettings, what: str) -> str:
    return f"{provider.type.upper()}_{what}"


def _read_file(path: Path) -> str:
    try:
        # Opened once, so that what is looked at is what is read; a pipe does not hold us up.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        with os.fdopen(os.open(path, flags), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise KeyMistake("api_key_file", f"{path} is not a file")
            if about.st_mode & 0o077:
                mode = stat.S_IMODE(about.st_mode)
                sentence = f"{path} can be read by others (mode {mode:04o}): chmod 600 it"
                raise KeyMistake("api_key_file", sentence)
            key = file.read(_FILE_BYTES_MAX).decode(errors="replace").strip()
    except OSError as error:
        raise KeyMistake("api_key_file", f"can't read {path}: {error.strerror}") from None
    if not key:
        raise KeyMistake("api_key_file", f"{path} is empty")
    return key


def is_on_this_machine(base_url: str) -> bool:
    """Whether the address is on loopback: then no proxy is used, even if the environment
    names one."""
    return is_loopback(urlsplit(base_url).hostname or "")
