"""Seals on what a model thought, which only the server that made them can check.

A seal tells what it was put on (model, text, and what came before), so that a wrong
one can be refused with the sentence that says what is different.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping

import orjson

_MAC_BYTES = 32


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Seals:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def put_on(self, contents: Mapping[str, str]) -> str:
        payload = orjson.dumps(dict(contents), option=orjson.OPT_SORT_KEYS)
        return base64.b64encode(self._mac(payload) + payload).decode()

    def contents(self, seal: str) -> Mapping[str, str] | None:
        """What it was put on; none if it is not one of ours, or was changed."""
        try:
            raw = base64.b64decode(seal, validate=True)
        except (binascii.Error, ValueError):
            return None
        mac, payload = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(payload)):
            return None
        contents: dict[str, str] = orjson.loads(payload)
        return contents

    def _mac(self, payload: bytes) -> bytes:
        return hmac.new(self._key, payload, hashlib.sha256).digest()
