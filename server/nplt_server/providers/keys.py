"""Where keys come from: a variable, or a file that nobody else can read.

A key is held as a secret until the client is made, and no sentence from here quotes it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from pydantic import SecretStr

from nplt_server.provider_settings import OpenAISettings, VendorSettings

_FILE_BYTES_MAX = 16_384


class KeyMistake(Exception):
    """`where` is the setting that is to be mended."""

    def __init__(self, where: str, sentence: str) -> None:
        super().__init__(sentence)
        self.where = where


def read_key(provider: VendorSettings, environ: Mapping[str, str]) -> SecretStr:
    """Empty where none is asked for: servers of one's own often need none."""
    if provider.api_key_file is not None:
        path = provider.api_key_file
        return _checked(_read_file(path), "api_key_file", holder=str(path))
    name = provider.api_key_env
    if name is None:
        if provider.base_url is not None:
            return SecretStr("")  # what is for the vendor is not for everybody
        name = standard_variable(provider, "API_KEY")
    key = environ.get(name, "").strip()
    if not key:
        # Variables are written in capitals; anything else may be the key itself.
        told = name if name.isupper() else "variable of that name"
        raise KeyMistake("api_key_env", f"there is no {told} in the environment")
    return _checked(key, "api_key_env", holder=name)


def base_url_of(provider: VendorSettings, environ: Mapping[str, str]) -> str | None:
    """None: the vendor's own. Whoever sends a vendor's key elsewhere by a variable, as
    all programs do, sends ours there too."""
    return provider.base_url or environ.get(standard_variable(provider, "BASE_URL")) or None


def standard_variable(provider: VendorSettings, what: str) -> str:
    vendor = "OPENAI" if isinstance(provider, OpenAISettings) else "ANTHROPIC"
    return f"{vendor}_{what}"


def _checked(key: str, where: str, *, holder: str) -> SecretStr:
    # The HTTP library would say so too, and quote it.
    if any(not "!" <= character <= "~" for character in key):
        raise KeyMistake(where, f"what {holder} holds has characters that no key has")
    return SecretStr(key)


def _read_file(path: Path) -> str:
    try:
        with closing(_Descriptor(path)) as file:
            about = os.fstat(file.number)
            if not stat.S_ISREG(about.st_mode):
                raise KeyMistake("api_key_file", f"{path} is not a file")
            if about.st_mode & 0o077:
                mode = stat.S_IMODE(about.st_mode)
                sentence = f"{path} can be read by others (mode {mode:04o}): chmod 600 it"
                raise KeyMistake("api_key_file", sentence)
            key = os.read(file.number, _FILE_BYTES_MAX).decode(errors="replace").strip()
    except OSError as error:
        raise KeyMistake("api_key_file", f"can't read {path}: {error.strerror}") from None
    if not key:
        raise KeyMistake("api_key_file", f"{path} is empty")
    return key


class _Descriptor:
    """Opened once, so that what is looked at is what is read; a pipe does not hold us up."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def close(self) -> None:
        os.close(self.number)
