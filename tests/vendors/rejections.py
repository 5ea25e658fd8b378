"""A request the vendor would not take: what it says, and with which status.

The rules raise it; each vendor has its own way to write it down (`openai_api.py`,
`anthropic_api.py`).
"""

from __future__ import annotations

from collections.abc import Mapping


class Rejection(Exception):
    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """`fields`: what else the error body has, or has instead."""
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.fields = dict(fields or {})

    def __repr__(self) -> str:
        return f"Rejection({self.status} {self.kind}, {self.param}: {self.message})"
