"""The todo list: numbers stay, a call does all or nothing, and little can go wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.widgets.widget_stage import Stage

from nplt_server.tools import ToolFailed
from nplt_server.widgets import (
    ITEMS_MAX,
    TEXT_CHARACTERS_MAX,
    TodoAction,
    TodoList,
    changed,
)
from nplt_storage.entries import WidgetEntry

ACTIONS: list[TodoAction] = ["add", "add", "done", "reopen", "remove", "clear"]

ITEM = {"number": 3, "text": "read", "done": True}


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.use("todo", action="add", texts=["read", "think", "write"])
    return stage


def lines(stage: Stage) -> list[str]:
    return stage.state.screen().splitlines()[3:]


def test_items_are_shown_in_order_with_their_numbers(stage: Stage) -> None:
    assert stage.use("todo", action="done", numbers=[1, 3]) == "Done: 1, 3."
    assert stage.state.screen() == (
        "# [Live Screen]\n\n## Todo\n- [x] 1 read\n- [ ] 2 think\n- [x] 3 write"
    )
    stage.use("todo", action="reopen", numbers=[3])
    assert lines(stage)[-1] == "- [ ] 3 write"


def test_a_number_is_never_given_twice(stage: Stage) -> None:
    stage.use("todo", action="remove", numbers=[3])
    assert stage.use("todo", action="add", texts=["sleep"]) == "Added 4."
    assert stage.use("todo", action="clear") == "Removed all 3 items; 3 were open."
    assert stage.state.screen() == ""
    assert stage.use("todo", action="add", texts=["again"]) == "Added 5."


def test_one_is_as_good_as_a_list_of_one_and_nothing_as_an_empty_one(stage: Stage) -> None:
    stage.use("todo", action="done", numbers=2, texts=None)
    stage.use("todo", action="done", numbers="3", texts="")
    stage.use("todo", action="add", texts="rest", numbers=None)
    assert lines(stage) == ["- [ ] 1 read", "- [x] 2 think", "- [x] 3 write", "- [ ] 4 rest"]


def test_an_item_is_one_line(stage: Stage) -> None:
    stage.use("todo", action="add", texts=["  a\n- [x] 9\tforged "])
    assert lines(stage)[-1] == "- [ ] 4 a - [x] 9 forged"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"action": "done", "numbers": [1, 7, 9]}, r"no item 7, 9.* items are 1, 2, 3"),
        ({"action": "remove", "numbers": [1, 0]}, "no item 0"),
        ({"action": "done"}, "takes numbers"),
        ({"action": "done", "texts": ["read"]}, "takes numbers"),
        ({"action": "add"}, "takes texts"),
        ({"action": "add", "texts": ["fine", " \n"]}, "has a text"),
        ({"action": "clear", "numbers": [1]}, "every item"),
        ({"action": "clear", "texts": ["new"]}, "every item"),
        ({"action": "finish", "numbers": [1]}, "done"),
        ({"action": "done", "numbers": ["first"]}, "numbers"),
    ],
)
def test_a_call_does_all_or_nothing_and_says_what_was_wrong(
    stage: Stage, arguments: dict[str, Any], reason: str
) -> None:
    before = stage.state.screen()
    with pytest.raises(ToolFailed, match=reason):
        stage.use("todo", **arguments)
    assert stage.state.screen() == before


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_list_is_bounded(over: int) -> None:
    stage = Stage()
    stage.use("todo", action="add", texts=["x"] * 60)
    more = ["y"] * (ITEMS_MAX - 60 + over)
    if over > 0:
        with pytest.raises(ToolFailed, match=r"at most 100 items and has 60: .*for 41 more"):
            stage.use("todo", action="add", texts=more)
    else:
        stage.use("todo", action="add", texts=more)
        assert len(lines(stage)) == ITEMS_MAX + over


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_an_item_is_bounded(over: int) -> None:
    stage = Stage()
    text = "é" * (TEXT_CHARACTERS_MAX + over)
    if over > 0:
        with pytest.raises(ToolFailed, match=r"at most 500 characters.* has 501"):
            stage.use("todo", action="add", texts=[text])
    else:
        stage.use("todo", action="add", texts=[text])
        assert lines(stage) == [f"- [ ] 1 {text}"]


def test_every_change_is_an_entry_and_no_change_is_none(stage: Stage) -> None:
    stage.use("todo", action="done", numbers=[2])
    stage.use("todo", action="done", numbers=[2])
    assert [entry.kind for entry in stage.history.entries] == [WidgetEntry.kind] * 2


@pytest.mark.parametrize(
    ("state", "numbers", "next_number"),
    [
        ({}, [], 1),
        ({"items": None}, [], 1),
        ({"items": {"number": 1}, "next_number": "7"}, [], 1),
        ({"items": [ITEM]}, [3], 4),
        ({"items": [ITEM], "next_number": 2}, [3], 4),
        ({"items": [ITEM], "next_number": 9}, [3], 9),
        ({"items": [], "next_number": True}, [], 1),
        ({"items": [7, None, [], {}, {**ITEM, "number": True}, {**ITEM, "done": 1}, ITEM]}, [3], 4),
        ({"items": [{**ITEM, "number": -1}, {**ITEM, "text": None}], "more": 1}, [], 1),
    ],
)
def test_whatever_a_file_holds_is_read_as_some_list(
    state: dict[str, Any], numbers: list[int], next_number: int
) -> None:
    todos = TodoList.from_state(state)
    assert [item.number for item in todos.items] == numbers
    assert todos.next_number == next_number
    assert TodoList.from_state(todos.as_state()) == todos


@given(orders=st.lists(st.integers(0, 6 * len(ACTIONS) - 1), max_size=12))
def test_numbers_go_up_and_an_item_keeps_number_and_text(orders: list[int]) -> None:
    todos = TodoList()
    named: dict[int, str] = {}
    for place, order in enumerate(orders):
        action, number = ACTIONS[order % len(ACTIONS)], order // len(ACTIONS) + 1
        texts = [f"text {place}"] if action == "add" else []
        numbers = [] if action in ("add", "clear") else [number]
        there = {item.number for item in todos.items}
        try:
            todos, _ = changed(todos, action, texts=texts, numbers=numbers)
        except ToolFailed:
            assert not there.issuperset(numbers)
        if action == "add":
            assert todos.items[-1].number not in named
            named[todos.items[-1].number] = texts[0]
        assert [item.text for item in todos.items] == [named[item.number] for item in todos.items]
