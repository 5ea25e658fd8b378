"""The table of answers has one for every request there is."""

from __future__ import annotations

from nplt_protocol.messages import REQUEST_TYPES
from nplt_server.requests import HANDLERS


def test_no_request_is_without_an_answer() -> None:
    assert set(HANDLERS) == set(REQUEST_TYPES.values())
