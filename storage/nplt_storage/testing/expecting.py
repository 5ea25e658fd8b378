"""How a rule says what it expects: without pytest, and with words that help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class RuleBroken(AssertionError):
    pass


def expect(condition: object, otherwise: str) -> None:
    if not condition:
        raise RuleBroken(otherwise)


def expect_equal(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise RuleBroken(f"{what}: found {_short(found)}, not {_short(wanted)}")


@contextmanager
def refused(*errors: type[Exception], what: str) -> Iterator[None]:
    try:
        yield
    except errors:
        return
    names = " or ".join(error.__name__ for error in errors)
    raise RuleBroken(f"{what} should have raised {names}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 600 else f"{text[:400]} … {text[-150:]}"
