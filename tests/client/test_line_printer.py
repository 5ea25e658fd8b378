"""The scrollback of the line chat: changes printed in order, each once, block by block."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from nplt_client.chat.changes import (
    PromptShown,
    TextGrew,
    TextReplaced,
    ToolShown,
    TurnBegan,
    TurnChange,
    TurnEnded,
)
from nplt_client.lines.composer import status_rows, tail
from nplt_client.lines.printer import ChangePrinter
from nplt_client.render.scrollback import (
    MarkdownBlockSplitter,
    ScrollbackWriter,
    markdown_parser,
)
from nplt_client.render.text import width_of

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Scrollback:
    def __init__(self) -> None:
        self.raw = ""
        self.scrollback = ScrollbackWriter(self._put, lambda: 60)
        self.printer = ChangePrinter(self.scrollback, lambda: "web")

    def _put(self, text: str) -> None:
        self.raw += text

    def apply(self, *changes: TurnChange) -> str:
        """What is on the scrollback then, without colours and empty lines."""
        for change in changes:
            self.printer.apply(change)
        self.scrollback.flush()
        lines = COLOURS.sub("", self.raw).split("\n")
        return "\n".join(line for line in lines if line)


def asked(turn_id: str, text: str, *, is_mine: bool = True) -> PromptShown:
    return PromptShown(turn_id=turn_id, text=text, message_id=f"of {turn_id}", is_mine=is_mine)


def began(turn_id: str) -> TurnBegan:
    return TurnBegan(turn_id=turn_id, model="m")


def grew(turn_id: str, piece: str, call: int = 0) -> TextGrew:
    return TextGrew(turn_id=turn_id, call=call, piece=piece)


def kept(turn_id: str, text: str, call: int = 0) -> TextReplaced:
    return TextReplaced(turn_id=turn_id, call=call, text=text)


def done(turn_id: str) -> TurnEnded:
    return TurnEnded(turn_id=turn_id, state="completed")


def test_a_queued_prompt_is_printed_when_its_turn_begins() -> None:
    page = Scrollback()
    page.printer.unsent["of 1"] = "first"
    assert page.printer.waiting == ["first"]
    page.apply(asked("1", "first"), began("1"), grew("1", "an"), asked("2", "second"))
    assert page.printer.waiting == ["second"]
    assert page.printer.unfinished == "an"
    shown = page.apply(
        asked("3", "third", is_mine=False),
        grew("1", " answer"), kept("1", "an answer"), done("1"),
        began("2"), kept("2", "another"), done("2"),
        began("3"), kept("3", "for them"), done("3"),
    )  # fmt: skip
    assert shown == ("you ▸ first\nan answer\nyou ▸ second\nanother\nweb ▸ third\nfor them")
    assert page.printer.waiting == []


def test_three_thousand_deltas_are_printed_once_as_blocks_are_finished() -> None:
    page = Scrollback()
    page.apply(asked("1", "go"), began("1"))
    text = "".join(f"word{number} " + "\n\n" * (number % 30 == 29) for number in range(3_000))
    for number, piece in enumerate(re.findall(r"\S+\s+", text)):
        page.printer.apply(grew("1", piece))
        page.scrollback.flush()
        assert page.printer.unfinished.count("word") <= 30
        if number == 1_500:
            assert "word1400 " in page.raw
    shown = page.apply(kept("1", text), done("1"), done("1"))
    assert re.findall(r"word\d+", shown) == re.findall(r"word\d+", text)


def test_reasoning_and_tools_are_printed_between_the_texts() -> None:
    page = Scrollback()
    tool = ToolShown(turn_id="1", call=0, tool_call_id="t", name="clock", arguments='{"a": 1}')
    result = ToolShown(
        turn_id="1", call=0, tool_call_id="t", name="clock", status="success", seconds=0.25,
        result="noon\nsharp",
    )  # fmt: skip
    shown = page.apply(
        asked("1", "go"), began("1"),
        TextGrew(turn_id="1", call=0, piece="I think\nthere", kind="reasoning"),
        TextGrew(turn_id="1", call=0, piece="fore", kind="reasoning"),
        grew("1", "Let me look."),
        TextReplaced(turn_id="1", call=0, text="I think\ntherefore", kind="reasoning"),
        kept("1", "Let me look."), tool, result, result,
        grew("1", "It is", call=1), kept("1", "It is noon.", call=1), done("1"),
    )  # fmt: skip
    assert shown == (
        "you ▸ go\nI think\ntherefore\nLet me look.\n"
        '⚙ clock {"a": 1} · success, 0.2 s: noon sharp\nIt is noon.'
    )
    assert page.printer.answers[-1] == "Let me look.\n\nIt is noon."


def test_a_failed_turn_is_printed_once_with_its_reason() -> None:
    page = Scrollback()
    why = TurnEnded(turn_id="1", state="failed", error="no such model")
    shown = page.apply(asked("1", "go"), began("1"), grew("1", "half"), why, why)
    assert shown == "you ▸ go\nhalf\n✗ no such model"
    shown = page.apply(asked("2", "again"), TurnEnded(turn_id="2", state="interrupted"))
    assert shown.endswith("you ▸ again\n■ interrupted; what came is kept")


def test_catching_up_prints_only_what_is_missing() -> None:
    page = Scrollback()
    before = page.apply(asked("1", "go"), began("1"), grew("1", "one "))
    missed: list[tuple[str, list[TurnChange]]] = [
        ("1", [asked("1", "go"), kept("1", "one two"), done("1")]),
        ("2", [asked("2", "and"), kept("2", "three"), done("2")]),
    ]
    page.printer.catch_up(missed)
    page.printer.catch_up(missed)
    assert page.apply() == f"{before}\none two\nyou ▸ and\nthree"
    page.printer.catch_up([("3", [asked("3", "later")])], waiting=["3"])
    assert page.printer.waiting == ["later"]
    assert page.apply(began("3")).endswith("three\nyou ▸ later")


def test_markdown_answers_are_formatted_and_nothing_is_hidden() -> None:
    page = Scrollback()
    text = "# Big\n\n**bold** `code` <b>tag</b> [words](http://lie) ![pic](http://img)\n\n- a\n"
    shown = page.apply(asked("1", "go"), kept("1", text + "\n```py\nx = 1\n```"), done("1"))
    assert shown == (
        "you ▸ go\nBig\nbold code <b>tag</b> words (http://lie) !pic (http://img)\n • a\n  x = 1"
    )
    assert "\x1b[1mbold\x1b[0m" in page.raw
    assert "]8;" not in page.raw
    assert all(line == line.rstrip() for line in page.raw.split("\n"))
    shown = page.apply(asked("3", "go"), kept("3", "one\ntwo\n\n- [x] done"), done("3"))
    assert shown.endswith("one\ntwo\n • ☑ done")
    page.scrollback.is_raw = True
    assert page.apply(asked("2", "raw"), kept("2", "**as it is**")).endswith("**as it is**")


LINES = [
    "", "", "text", "two words", "# heading", "- item", "* item", "1. first", "2) second",
    "  inside", "    far inside", "\tcode", "```", "```py", "~~~~", "````", "  ```", "> quote",
    "> ```", "- ```", "| a | b |", "|---|---|", "| 1 | 2 |", "===", "---", "[a]: http://b",
    "![a](b)", "<div>", "</div>", "\\", "`open", "**bold**", "日本語",
]  # fmt: skip

documents = st.lists(st.sampled_from(LINES), max_size=25).map("\n".join)


def cut(text: str, places: Sequence[int]) -> tuple[list[str], list[str]]:
    """What was given away before the end, and what at the end."""
    splitter = MarkdownBlockSplitter()
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    early = [block for a, b in pairwise(edges) for block in splitter.feed(text[a:b])]
    return early, splitter.end()


def shape(text: str) -> list[tuple[str, str, str]]:
    """Empty lines at the end of a fence that nobody closed are not seen: the parser
    counts them differently where another block stands before it."""
    return [
        (token.type, token.content.rstrip("\n"), token.info)
        for token in markdown_parser().parse(text)
    ]


@given(documents, st.lists(st.integers(0, 400), max_size=8))
@example("  ```\n````\n````\ntext", [])  # the second line closes a fence that is indented
def test_markdown_blocks_join_to_the_text_and_render_like_the_whole(
    text: str, places: list[int]
) -> None:
    early, late = cut(text, places)
    blocks = [*early, *late]
    assert "".join(blocks) == text
    assert blocks == [*(whole := cut(text, []))[0], *whole[1]]
    assert [token for block in blocks for token in shape(block)] == shape(text)


def test_a_markdown_block_is_finished_when_the_next_one_begins() -> None:
    splitter = MarkdownBlockSplitter()
    assert splitter.feed("# Title\nfirst line\nsecond line\n\n") == []
    assert splitter.feed("next\n") == ["# Title\nfirst line\nsecond line\n\n"]
    assert splitter.feed("```py\nx = 1\n\n\n# no heading\n") == ["next\n"]
    assert splitter.unfinished == "```py\nx = 1\n\n\n# no heading\n"
    assert splitter.feed("```\n") == ["```py\nx = 1\n\n\n# no heading\n```\n"]
    assert splitter.feed("- one\n\n- two\n\n  still two\n\n") == []
    assert splitter.feed("after\n") == ["- one\n\n- two\n\n  still two\n\n"]
    assert splitter.end() == ["after\n"]


def test_the_markdown_parser_does_not_run_more_often_for_a_long_fence() -> None:
    splitter = MarkdownBlockSplitter()
    splitter.feed("```\n")
    lines = sum(bool(splitter.feed(f"line {number}\n\n")) for number in range(20_000))
    assert lines == 0
    (block,) = splitter.feed("```\n")
    assert block.count("\n") == 40_002


@given(st.text("ab 日\n\t", max_size=300), st.integers(4, 30), st.integers(1, 8))
def test_the_tail_of_a_text_fits_its_rows(text: str, width: int, rows_max: int) -> None:
    rows = tail(text, width=width, rows_max=rows_max)
    assert len(rows) <= rows_max
    assert all(width_of(row) <= width for row in rows)
    whole = "".join(text.expandtabs(4).split())
    assert whole.endswith("".join("".join(rows).split()))


def test_the_status_rows_leave_room_for_the_input() -> None:
    shown = status_rows(
        40,
        unfinished="line\n" * 100,
        waiting=[f"prompt {number}\nof two lines" for number in range(10)],
        question=("allow it?",),
        status="● online",
    )
    rows = [row for _, row in shown]
    assert len(rows) == 1 + 8 + 3 + 1 + 1 + 1
    assert rows[-3:] == ["… and 7 more", "allow it?", "● online"]
    calm = status_rows(40, unfinished="", waiting=(), question=(), status="x")
    assert list(calm) == [("class:status", "x")]
