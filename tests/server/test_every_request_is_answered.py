"""The table of answers has one for every request there is."""

from __future__ import annotations

from nplt_protocol.requests import REQUEST_TYPES
from nplt_server.answers import ANSWERS


def test_no_request_is_without_an_answer() -> None:
    assert set(ANSWERS) == set(REQUEST_TYPES.values())
