"""A call's refusal as a value, for tests that allow both outcomes."""

from __future__ import annotations

from collections.abc import Callable

from nplt_protocol import RequestError


def refusal_of(call: Callable[[], object]) -> RequestError | None:
    """Any other exception goes through, and fails the test."""
    try:
        call()
    except RequestError as error:
        return error
    return None
