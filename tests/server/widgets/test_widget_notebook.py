"""The notebook: what is noted is kept to the letter, and a doubtful edit changes nothing."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from tests.server.widgets.widget_stage import WIDGETS, Stage, now

from nplt_server.tools import ToolFailed
from nplt_server.widgets import NOTEBOOK_BYTES_MAX, edited
from nplt_storage.entries import NotebookEntry
from nplt_storage.errors import BadEntry


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_what_is_written_takes_the_place_of_everything(stage: Stage) -> None:
    stage.use("notebook", action="write", text="first")
    stage.use("notebook", action="write", text="likes tea")
    assert stage.notebook == "likes tea"
    assert stage.state.screen() == "# [Live Screen]\n\n## Notebook\nlikes tea"


def test_what_is_appended_begins_on_a_new_line(stage: Stage) -> None:
    for text in ("one", "two\n", "three"):
        stage.use("notebook", action="append", text=text)
    assert stage.notebook == "one\ntwo\nthree"


def test_a_passage_that_occurs_once_is_replaced(stage: Stage) -> None:
    stage.use("notebook", action="write", text="likes tea, hates fog")
    stage.use("notebook", action="replace", old_text="tea", text="coffee")
    assert stage.notebook == "likes coffee, hates fog"


def test_every_change_is_an_entry_and_no_change_is_none(stage: Stage) -> None:
    stage.use("notebook", action="write", text="a")
    stage.use("notebook", action="write", text="a")
    stage.use("notebook", action="append", text="")
    stage.use("notebook", action="replace", old_text="a", text="a")
    assert [entry.kind for entry in stage.history.entries] == [NotebookEntry.kind]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"action": "replace", "old_text": "lemon", "text": "x"}, "does not occur"),
        ({"action": "replace", "old_text": "tea", "text": "x"}, "occurs 3 times"),
        ({"action": "replace", "old_text": "aa", "text": "x"}, "occurs 2 times"),
        ({"action": "replace", "text": "x"}, "needs old_text"),
        ({"action": "replace", "old_text": "", "text": "x"}, "needs old_text"),
        ({"action": "write", "old_text": "tea", "text": "x"}, "goes with replace"),
        ({"action": "erase", "text": "x"}, "write, append"),
        ({"action": "append"}, "text"),
    ],
)
def test_an_edit_that_is_in_doubt_changes_nothing_and_says_why(
    stage: Stage, arguments: dict[str, Any], reason: str
) -> None:
    stage.use("notebook", action="write", text="tea, tea and tea; aaa")
    with pytest.raises(ToolFailed, match=reason):
        stage.use("notebook", **arguments)
    assert stage.notebook == "tea, tea and tea; aaa"


def test_what_a_model_leaves_empty_is_as_good_as_left_out(stage: Stage) -> None:
    stage.use("notebook", action="write", text="a", old_text="")
    stage.use("notebook", action="append", text="b", old_text=None)
    assert stage.notebook == "a\nb"


@pytest.mark.parametrize("size", [NOTEBOOK_BYTES_MAX - 1, NOTEBOOK_BYTES_MAX])
def test_a_notebook_may_be_filled_to_the_last_byte(stage: Stage, size: int) -> None:
    stage.use("notebook", action="write", text="é")
    stage.use("notebook", action="append", text="x" * (size - 3))
    assert len(stage.notebook.encode()) == size


def test_what_does_not_fit_is_refused_with_sizes_and_nothing_is_lost(stage: Stage) -> None:
    stage.use("notebook", action="write", text="é")
    with pytest.raises(ToolFailed, match=r"would have 16,385 bytes.* at most 16,384.* with 2:"):
        stage.use("notebook", action="append", text="x" * (NOTEBOOK_BYTES_MAX - 2))
    assert stage.notebook == "é"


def test_the_size_limit_of_the_notebook_holds_for_every_writer(stage: Stage) -> None:
    with pytest.raises(BadEntry, match="16,384"):
        now(stage.state.update_memory_notebook("x" * (NOTEBOOK_BYTES_MAX + 1)))
    assert stage.history.head_seq == 0


def test_a_blank_notebook_is_not_shown(stage: Stage) -> None:
    stage.use("notebook", action="write", text=" \n")
    assert stage.state.screen() == ""


def test_a_widget_runs_its_own_tools_and_no_others(stage: Stage) -> None:
    widget = WIDGETS[0]
    arguments = {"action": "write", "text": "a"}
    assert "1 of at most 16,384 bytes" in now(widget.execute_tool("notebook", {**arguments}, stage))
    with pytest.raises(ToolFailed, match="no tool 'todo'"):
        now(widget.execute_tool("todo", {**arguments}, stage))


def every_text(letters: str, length_max: int) -> list[str]:
    lengths = range(length_max + 1)
    return ["".join(text) for length in lengths for text in product(letters, repeat=length)]


def test_a_replacement_touches_the_only_place_it_can_mean() -> None:
    for before, old in product(every_text("ab", 6), every_text("ab", 3)[1:]):
        places = [at for at in range(len(before)) if before.startswith(old, at)]
        if len(places) == 1:
            (at,) = places
            after = edited(before, "replace", text="<>", old_text=old)
            assert after == before[:at] + "<>" + before[at + len(old) :]
        else:
            with pytest.raises(ToolFailed):
                edited(before, "replace", text="<>", old_text=old)


def test_appending_adds_a_line_break_where_it_is_missing_and_nothing_else() -> None:
    for before, added in product(every_text("a\n", 3), repeat=2):
        is_missing = bool(before and added and before[-1] != "\n")
        after = edited(before, "append", text=added, old_text=None)
        assert after == before + "\n" * is_missing + added
