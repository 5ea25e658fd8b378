"""What the line mode decides without a terminal: blocks, flows, the margin, questions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nplt_client.linemode.answer_flow import AnswerFlow
from nplt_client.linemode.margin import MarginFacts, margin_rows, tail
from nplt_client.linemode.markdown_blocks import BlockCutter, markdown_parser
from nplt_client.tables import width_of

LINES = [
    "", "", "text", "two words", "# heading", "- item", "* item", "1. first", "2) second",
    "  inside", "    far inside", "\tcode", "```", "```py", "~~~~", "````", "  ```", "> quote",
    "> ```", "- ```", "| a | b |", "|---|---|", "| 1 | 2 |", "===", "---", "[a]: http://b",
    "![a](b)", "<div>", "</div>", "\\", "`open", "**bold**", "日本語",
]  # fmt: skip

documents = st.lists(st.sampled_from(LINES), max_size=25).map("\n".join)


def cut(text: str, places: Sequence[int]) -> tuple[list[str], list[str]]:
    """What was given away before the end, and what at the end."""
    cutter = BlockCutter()
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    early = [block for a, b in pairwise(edges) for block in cutter.feed(text[a:b])]
    return early, cutter.end()


def shape(text: str) -> list[tuple[str, str, str]]:
    """Empty lines at the end of a fence that nobody closed are not seen: the parser
    counts them differently where another block stands before it."""
    return [
        (token.type, token.content.rstrip("\n"), token.info)
        for token in markdown_parser().parse(text)
    ]


@given(documents, st.lists(st.integers(0, 400), max_size=8))
def test_blocks_are_the_text_and_mean_what_the_whole_means(text: str, places: list[int]) -> None:
    early, late = cut(text, places)
    blocks = [*early, *late]
    assert "".join(blocks) == text
    assert blocks == [*(whole := cut(text, []))[0], *whole[1]]
    assert [token for block in blocks for token in shape(block)] == shape(text)


def test_a_block_is_given_away_as_soon_as_the_next_one_has_begun() -> None:
    cutter = BlockCutter()
    assert cutter.feed("# Title\nfirst line\nsecond line\n\n") == []
    assert cutter.feed("next\n") == ["# Title\nfirst line\nsecond line\n\n"]
    assert cutter.feed("```py\nx = 1\n\n\n# no heading\n") == ["next\n"]
    assert cutter.unfinished == "```py\nx = 1\n\n\n# no heading\n"
    assert cutter.feed("```\n") == ["```py\nx = 1\n\n\n# no heading\n```\n"]
    assert cutter.feed("- one\n\n- two\n\n  still two\n\n") == []
    assert cutter.feed("after\n") == ["- one\n\n- two\n\n  still two\n\n"]
    assert cutter.end() == ["after\n"]


def test_the_parser_is_asked_no_oftener_for_a_long_fence() -> None:
    cutter = BlockCutter()
    cutter.feed("```\n")
    lines = sum(bool(cutter.feed(f"line {number}\n\n")) for number in range(20_000))
    assert lines == 0
    (block,) = cutter.feed("```\n")
    assert block.count("\n") == 40_002


@given(documents, st.lists(st.integers(0, 400), max_size=4), st.integers(0, 400))
def test_what_is_told_again_after_a_loss_is_printed_once(
    text: str, places: list[int], lost_at: int
) -> None:
    flow = AnswerFlow()
    heard = text[: lost_at % (len(text) + 1)]
    printed = flow.grow(heard)
    flow.tell_again()
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    for a, b in pairwise(edges):
        printed += flow.grow(text[a:b])
    printed += flow.stand(text)
    assert "".join(printed) == text == flow.text


def test_a_text_that_is_stored_otherwise_is_printed_anew() -> None:
    flow = AnswerFlow()
    flow.grow("what was streamed")
    assert flow.stand("what is kept")[-1] == "what is kept"
    assert flow.text == "what is kept"


@given(st.text("ab 日\n\t", max_size=300), st.integers(4, 30), st.integers(1, 8))
def test_the_end_of_a_text_fits_its_rows(text: str, width: int, rows_max: int) -> None:
    rows = tail(text, width=width, rows_max=rows_max)
    assert len(rows) <= rows_max
    assert all(width_of(row) <= width for row in rows)
    whole = "".join(text.expandtabs(4).split())
    assert whole.endswith("".join("".join(rows).split()))


def test_the_margin_leaves_room_for_the_input() -> None:
    facts = MarginFacts(
        unfinished="line\n" * 100,
        waiting=[f"prompt {number}\nof two lines" for number in range(10)],
        question="allow it?",
        status="● online",
    )
    rows = [row for _, row in margin_rows(facts, width=40)]
    assert len(rows) == 1 + 8 + 3 + 1 + 1 + 1
    assert rows[-3:] == ["… and 7 more", "allow it?", "● online"]
    assert margin_rows(MarginFacts(status="x"), width=40) == [("class:status", "x")]
