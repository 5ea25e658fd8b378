"""Masks the secrets that this server knows in what comes back from providers and tools.

A provider or tool that repeats our key would put it into frames, files and the index. Known are
the providers' keys, and what the settings give to MCP servers in variables and headers whose
names say that it is secret. Shorter ones than `SECRET_CHARACTERS_MIN` are not masked: `ollama`
or `1` may be anybody's words.

A secret is found as it is spelled, in one text, also where the text comes in pieces. Another
spelling of it (encoded, reversed, with something in between) is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from nplt_protocol import JsonValue

SECRET_CHARACTERS_MIN: Final = 16
MASK: Final = "[secret]"
_HELD_CHARACTERS_MIN: Final = 4
"""A shorter beginning of a secret, at the end of a piece, is not held back: many words end so."""
# As text: few settings need it, and compiling takes a start a millisecond.
_SAYS_SECRET: Final = (
    r"(?i)(?:^|[_-])(?:api)?(?:keys?|tokens?|secrets?|pass(?:word|wd|phrase)?|credentials?|auth"
    r"|authorization|cookie|bearer|pat)$|apikey|password|secret(?!s?[_-](?:file|path|name|id)$)"
)
"""The last word of a name: what `SSH_KEY_PATH` holds is no secret."""


class SecretMask:
    """The known secrets. Empty, it costs nothing."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {each for each in secrets if len(each) >= SECRET_CHARACTERS_MIN}
        self._secrets = tuple(sorted(known, key=len, reverse=True))
        """The longest first: one may begin with another."""
        held = _HELD_CHARACTERS_MIN
        self._starts = tuple({each[:held] for each in self._secrets})
        self._short_starts = tuple({each[:n] for each in self._secrets for n in range(1, held)})

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def __repr__(self) -> str:
        return f"SecretMask({len(self._secrets)} secrets)"

    def mask(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        return text

    def mask_json(self, value: JsonValue) -> JsonValue:
        match value:
            case str():
                return self.mask(value)
            case dict():
                return {self.mask(key): self.mask_json(part) for key, part in value.items()}
            case list():
                return [self.mask_json(part) for part in value]
            case _:
                return value

    def mask_bytes(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret.encode(), MASK.encode())
        return data

    def may_begin_in(self, text: str) -> bool:
        """Quickly, whether any secret can begin in the text."""
        if text.endswith(self._short_starts):
            return True
        for start in self._starts:  # noqa: SIM110, `any` takes twice as long
            if start in text:
                return True
        return False

    def beginning_at_end(self, text: str) -> int:
        """How many characters at the end of the text are the beginning of a secret."""
        longest = 0
        for secret in self._secrets:
            place = text.find(secret[0], max(0, len(text) - len(secret) + 1))
            while place >= 0 and len(text) - place > longest:
                if secret.startswith(text[place:]):
                    longest = len(text) - place
                place = text.find(secret[0], place + 1)
        return longest

    def is_most_of_one(self, text: str) -> bool:
        """Whether this beginning of a secret is at least half of it."""
        return any(
            secret.startswith(text) and 2 * len(text) >= len(secret) for secret in self._secrets
        )


class MaskedText:
    """A text that comes in pieces. What may be the beginning of a secret is held back until more
    of it has come, so `flush` must be called at the end."""

    def __init__(self, secrets: SecretMask) -> None:
        self._secrets = secrets
        self._before = ""
        """The last few characters given, if a secret may begin there."""
        self._held = ""
        self.has_masked = False

    def feed(self, piece: str) -> str:
        if not (self._before or self._held or self._secrets.may_begin_in(piece)):
            return piece
        whole = self._before + self._held + piece
        masked = self._secrets.mask(whole)
        self.has_masked = self.has_masked or masked != whole
        if masked.startswith(self._before):
            given = masked[len(self._before) :]
        else:  # the beginning of the secret was given already
            given = masked[masked.index(MASK) :]
        size = min(self._secrets.beginning_at_end(masked), len(given) + len(self._before))
        self._before = self._held = ""
        if size < _HELD_CHARACTERS_MIN:
            self._before = masked[len(masked) - size :]
            return given
        size = min(size, len(given))
        self._held = given[len(given) - size :]
        self._before = masked[: len(masked) - size][-(_HELD_CHARACTERS_MIN - 1) :]
        return given[: len(given) - size]

    def flush(self) -> str:
        """Returns the text that was held back; masked, if it is most of a secret."""
        held, before = self._held, self._before
        self._held = self._before = ""
        if not held:
            return ""
        whole = before + held
        begun = whole[len(whole) - self._secrets.beginning_at_end(whole) :]
        if not self._secrets.is_most_of_one(begun):
            return held
        self.has_masked = True
        return MASK


NO_SECRETS: Final = SecretMask()


def secrets_among(named: Mapping[str, str]) -> list[str]:
    """The values of the variables or headers whose names say that they are secret; of
    `Bearer XYZ` the last word."""
    secrets = [value.split() for name, value in named.items() if re.search(_SAYS_SECRET, name)]
    return [words[-1] for words in secrets if words]
