"""Who may come in. Without configured users there is one, `local`.

Only SHA-256 sums of tokens are known here, and they are compared in constant
time, all of them, so that nothing can be learned from how long a no takes.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping

LOCAL_USER = "local"


class Users:
    def __init__(self, token_sums: Mapping[str, str] | None = None) -> None:
        self._token_sums = dict(token_sums or {})

    @property
    def need_tokens(self) -> bool:
        return bool(self._token_sums)

    def authenticate(self, token: str | None) -> str | None:
        """The user's name; `None` is a no."""
        if not self.need_tokens:
            return LOCAL_USER
        given = token_sum(token or "")
        found = None
        for name, expected in self._token_sums.items():
            if hmac.compare_digest(given, expected.lower()):
                found = name
        return found


def new_token() -> str:
    return secrets.token_urlsafe(32)


def token_sum(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
