"""From changes to the scrollback of the line mode: in order, each thing once."""

from __future__ import annotations

import asyncio
import re

from nplt_client.errors import ConnectionLost, RequestRefused
from nplt_client.fullscreen.changes import (
    ApprovalWanted,
    OfTurn,
    PromptShown,
    ReasoningGrew,
    ReasoningStands,
    TextGrew,
    TextStands,
    ToolShown,
    TurnBegan,
    TurnEnded,
)
from nplt_client.linemode.paper import Paper
from nplt_client.linemode.questions import Questions
from nplt_client.linemode.telling import Telling

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Scrollback:
    def __init__(self) -> None:
        self.raw = ""
        self.paper = Paper(self._put, lambda: 60)
        self.telling = Telling(self.paper, lambda: "web")

    def _put(self, text: str) -> None:
        self.raw += text

    def tell(self, *changes: OfTurn) -> str:
        """What is on the paper then, without colours and empty lines."""
        for change in changes:
            self.telling.apply(change)
        self.paper.flush()
        lines = COLOURS.sub("", self.raw).split("\n")
        return "\n".join(line for line in lines if line)


def asked(turn_id: str, text: str, *, is_mine: bool = True) -> PromptShown:
    return PromptShown(turn_id=turn_id, text=text, message_id=f"of {turn_id}", is_mine=is_mine)


def began(turn_id: str) -> TurnBegan:
    return TurnBegan(turn_id=turn_id, model="m")


def grew(turn_id: str, piece: str, call: int = 0) -> TextGrew:
    return TextGrew(turn_id=turn_id, call=call, piece=piece)


def stands(turn_id: str, text: str, call: int = 0) -> TextStands:
    return TextStands(turn_id=turn_id, call=call, text=text)


def done(turn_id: str) -> TurnEnded:
    return TurnEnded(turn_id=turn_id, state="completed")


def test_what_was_typed_ahead_is_printed_when_its_turn_begins() -> None:
    page = Scrollback()
    page.telling.sending("of 1", "first")
    assert page.telling.waiting == ["first"]
    page.tell(asked("1", "first"), began("1"), grew("1", "an"), asked("2", "second"))
    assert page.telling.waiting == ["second"]
    assert page.telling.unfinished == "an"
    shown = page.tell(
        asked("3", "third", is_mine=False),
        grew("1", " answer"), stands("1", "an answer"), done("1"),
        began("2"), stands("2", "another"), done("2"),
        began("3"), stands("3", "for them"), done("3"),
    )  # fmt: skip
    assert shown == ("you ▸ first\nan answer\nyou ▸ second\nanother\nweb ▸ third\nfor them")
    assert page.telling.waiting == []


def test_three_thousand_pieces_are_printed_once_and_as_they_are_finished() -> None:
    page = Scrollback()
    page.tell(asked("1", "go"), began("1"))
    text = "".join(f"word{number} " + "\n\n" * (number % 30 == 29) for number in range(3_000))
    for number, piece in enumerate(re.findall(r"\S+\s+", text)):
        page.telling.apply(grew("1", piece))
        page.paper.flush()
        assert page.telling.unfinished.count("word") <= 30
        if number == 1_500:
            assert "word1400 " in page.raw
    shown = page.tell(stands("1", text), done("1"), done("1"))
    assert re.findall(r"word\d+", shown) == re.findall(r"word\d+", text)


def test_reasoning_and_tools_stand_between_the_texts() -> None:
    page = Scrollback()
    tool = ToolShown(turn_id="1", call=0, tool_call_id="t", name="clock", arguments='{"a": 1}')
    result = ToolShown(
        turn_id="1", call=0, tool_call_id="t", name="clock", status="success", seconds=0.25,
        result="noon\nsharp",
    )  # fmt: skip
    shown = page.tell(
        asked("1", "go"), began("1"),
        ReasoningGrew(turn_id="1", call=0, piece="I think\nthere"),
        ReasoningGrew(turn_id="1", call=0, piece="fore"),
        grew("1", "Let me look."),
        ReasoningStands(turn_id="1", call=0, text="I think\ntherefore"),
        stands("1", "Let me look."), tool, result, result,
        grew("1", "It is", call=1), stands("1", "It is noon.", call=1), done("1"),
    )  # fmt: skip
    assert shown == (
        "you ▸ go\nI think\ntherefore\nLet me look.\n"
        '⚙ clock {"a": 1} · success, 0.2 s: noon sharp\nIt is noon.'
    )
    assert page.telling.turns[-1].answer == "Let me look.\n\nIt is noon."


def test_a_failure_is_told_once_and_with_its_reason() -> None:
    page = Scrollback()
    failed = TurnEnded(turn_id="1", state="failed")
    why = TurnEnded(turn_id="1", state="failed", error="no such model")
    shown = page.tell(asked("1", "go"), began("1"), grew("1", "half"), failed, why, why)
    assert shown == "you ▸ go\nhalf\n✗ no such model"
    shown = page.tell(asked("2", "again"), TurnEnded(turn_id="2", state="interrupted"))
    assert shown.endswith("you ▸ again\n■ interrupted; what came is kept")


def test_reading_again_adds_only_what_is_missing() -> None:
    page = Scrollback()
    before = page.tell(asked("1", "go"), began("1"), grew("1", "one "))
    missed: list[tuple[str, list[OfTurn]]] = [
        ("1", [asked("1", "go"), stands("1", "one two"), done("1")]),
        ("2", [asked("2", "and"), stands("2", "three"), done("2")]),
    ]
    page.telling.catch_up(missed)
    page.telling.catch_up(missed)
    assert page.tell() == f"{before}\none two\nyou ▸ and\nthree"
    page.telling.catch_up([("3", [asked("3", "later")])], waiting=["3"])
    assert page.telling.waiting == ["later"]
    assert page.tell(began("3")).endswith("three\nyou ▸ later")


def test_answers_are_typeset_and_nothing_in_them_is_hidden() -> None:
    page = Scrollback()
    text = "# Big\n\n**bold** `code` <b>tag</b> [words](http://lie) ![pic](http://img)\n\n- a\n"
    shown = page.tell(asked("1", "go"), stands("1", text + "\n```py\nx = 1\n```"), done("1"))
    assert shown == (
        "you ▸ go\nBig\nbold code <b>tag</b> words (http://lie) !pic (http://img)\n • a\n  x = 1"
    )
    assert "\x1b[1mbold\x1b[0m" in page.raw
    assert "]8;" not in page.raw
    assert all(line == line.rstrip() for line in page.raw.split("\n"))
    page.paper.is_raw = True
    assert page.tell(asked("2", "raw"), stands("2", "**as it is**")).endswith("**as it is**")


class Approvals:
    """A client that knows one thing only."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bool, bool]] = []
        self.fails = False

    async def approve(self, approval_id: str, *, allow: bool, remember: bool) -> None:
        if self.fails:
            raise ConnectionLost("gone")
        self.told.append((approval_id, allow, remember))


def wanted(approval_id: str) -> ApprovalWanted:
    return ApprovalWanted(
        approval_id=approval_id, tool_name="rm", arguments="{}", expires_at="soon"
    )


async def test_a_yes_that_was_begun_before_the_question_is_no_answer_to_it() -> None:
    client = Approvals()
    questions = Questions(client)  # type: ignore[arg-type]
    questions.line_begins()
    assert questions.add(wanted("1"))
    assert not questions.add(wanted("1"))
    assert questions.answer_in("yes") is None
    questions.line_begins()
    assert questions.answer_in("yes, of course") is None
    verdict = questions.answer_in("a")
    assert verdict is not None
    questions.add(wanted("2"))
    client.fails = True
    try:
        await questions.decide_oldest(allow=True, remember=True)
    except ConnectionLost:
        client.fails = False
    await questions.decide_oldest(allow=verdict.allow, remember=verdict.remember)
    assert questions.answer_in("y") is None  # another one stands there now
    assert client.told == [("1", True, True)]
    assert questions.settle("2") is not None
    try:
        await questions.decide_oldest(allow=True, remember=False)
        raise AssertionError("there was nothing to decide")
    except RequestRefused:
        await asyncio.sleep(0)
