"""The tables of states in docs/architecture.md are those of the code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from tests.documents.pages import ROOT

from nplt_server.conversations.turn import RUN_STATES
from nplt_storage.turns import TURN_STATES

_State = TypeVar("_State", bound=Enum)
_Step = TypeVar("_Step", bound=Enum)

PAGE = (ROOT / "docs" / "architecture.md").read_text()


def _rows_after(marker: str) -> list[tuple[str, ...]]:
    section = PAGE.split(f"<!-- {marker} -->")[1].split("<!--")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", section, re.M)
    return rows[1:]  # without the heading


def _rows_of(table: Mapping[_State, Mapping[_Step, _State]]) -> list[tuple[str, ...]]:
    return [
        (state.value, step.value, following.value)
        for state, steps in table.items()
        for step, following in steps.items()
    ]


def test_the_table_of_stored_turn_states_is_the_one_in_the_code() -> None:
    assert _rows_after("states of a stored turn") == _rows_of(TURN_STATES)


def test_the_table_of_running_turn_states_is_the_one_in_the_code() -> None:
    assert _rows_after("states of a running turn") == _rows_of(RUN_STATES)
