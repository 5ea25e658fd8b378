"""What is wrong with a call's arguments, in lines that a model can act on.

    metric: must be one of cpu, memory, disk, all; you gave 'gpu'
    citty: there is no such parameter; did you mean city?

A line names the place, the rule and, in short, what was given: never the whole of
it, for that is in the call already.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from nplt_server.tools.policy import did_you_mean

_LINES_MAX: Final = 10
_GIVEN_CHARACTERS_MAX: Final = 40
_PLACE_CHARACTERS_MAX: Final = 80
_DETAILS = re.compile(r", (?:unable|got|input) .*", re.DOTALL)


def mistakes(error: ValidationError, names: Collection[str]) -> list[str]:
    found = error.errors(include_url=False)
    lines = [_line(one, names) for one in found[:_LINES_MAX]]
    more = len(found) - len(lines)
    return [*lines, f"and {more} more mistakes"] if more else lines


def _line(found: ErrorDetails, names: Collection[str]) -> str:
    place = _place(found["loc"])
    match found["type"]:
        case "missing":
            return f"{place}: is missing"
        case "extra_forbidden":
            near = did_you_mean(str(found["loc"][0]), names) if len(found["loc"]) == 1 else ""
            return f"{place}: there is no such parameter{near}"
        case _:
            return f"{place}: {_rule(found)}; you gave {_in_short(found['input'])}"


def _place(steps: tuple[int | str, ...]) -> str:
    place = ""
    for step in steps:
        if isinstance(step, int):
            place += f"[{step}]"
        else:
            place += f".{step}" if place else step
    return place[:_PLACE_CHARACTERS_MAX]


def _rule(found: ErrorDetails) -> str:
    if found["type"] in ("literal_error", "enum"):
        expected = str(found.get("ctx", {}).get("expected", ""))
        return "must be one of " + expected.replace("' or '", "', '").replace("'", "")
    if found["type"] in ("model_type", "dict_type", "dataclass_type"):
        return "must be an object"
    said = _DETAILS.sub("", found["msg"])
    said = said.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    said = re.sub("^Input should be", "must be", said)
    return said[:1].lower() + said[1:]


def _in_short(given: object) -> str:
    match given:
        case None:
            return "null"
        case bool():
            return str(given).lower()
        case str() if len(given) > _GIVEN_CHARACTERS_MAX:
            return repr(given[:_GIVEN_CHARACTERS_MAX]) + "…"
        case str() | int() | float():
            return repr(given)
        case list():
            return "a list"
        case _:
            return "an object"
