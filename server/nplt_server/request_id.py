"""The id of the turn that the current task works on, or of the answer that it makes without a
conversation. Log lines have it as `request`, and the requests to providers as a header."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

request_id: Final = ContextVar("request_id", default="")
"""Empty: the task works for no request, or for several."""
