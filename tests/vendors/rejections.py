"""A request the vendor would not take: what it says, and with which status.

The rules raise it; each vendor has its own way to write it down (`openai_api.py`,
`anthropic_api.py`).
"""

from __future__ import annotations


class Rejection(Exception):
    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code

    def __repr__(self) -> str:
        return f"Rejection({self.status} {self.kind}, {self.param}: {self.message})"
