"""Levels of detail of any text: bounded, its own words, the same every time."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.digest.results import levels_of_result

from nplt_protocol.json_text import JsonValue
from nplt_server.digest import (
    GIST_SIZE_MAX,
    SUMMARY_SIZE_MAX,
    levels_of,
    outline_of,
)
from nplt_server.digest.text import PassageOutline, may_cut, one_line, size_of
from nplt_storage.codec import entry_as_json
from nplt_storage.entries import LevelOfDetailSections, ModelInputEntry

MARK = re.compile(r"\[… [\d,]+ characters left out …\]|\[…\]")

PIECES = st.sampled_from(
    [
        *("One sentence. ", "Is it so? ", "Nr. 5 of Dr. Who, e.g. this one! ", "\n", "\n\n", "  "),
        *("# Heading\n", "- an item: with more. And more.\n", "```py\ndef f():\n    pass\n```\n"),
        *("```\n", "| a | b |\n", "2026-01-02 03:04:05 ERROR it failed\n", "a,b,c\n", "x" * 300),
        *(
            "import os\n",
            "class A:\n",
            "    return 1;\n",
            "diff --git a/x b/x\n",
            "+new\n",
            "-old\n",
        ),
        *(
            '{"a": [1, "b", null], ',
            "[[",
            "]]",
            '"',
            "\\",
            "我们讨论了。",
            "אין רווח כאן. ",
            "\r\n",
        ),
        *("e\u0301", "👩\u200d👧", "🇩🇪", "\u0301", "\u200d", "\x00", "\x1b[31m", "\u2028", "\x85"),
    ]
)
TEXTS = st.one_of(
    st.lists(st.tuples(PIECES, st.integers(1, 30)), max_size=8).map(
        lambda parts: "".join(piece * times for piece, times in parts)
    ),
    st.text(max_size=60).map(lambda text: text.replace("…", "") * 30),
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON = st.lists(SCALARS, max_size=5) | st.dictionaries(st.text(max_size=9), SCALARS, max_size=5)


def _levels(text: str) -> LevelOfDetailSections:
    levels = levels_of(text)
    assert levels is not None
    return levels


def _check_bounds(text: str, levels: LevelOfDetailSections) -> None:
    assert levels.live[0][1] is text
    summary = levels.summary[0][1] if levels.summary else text
    assert bool(levels.summary) == (size_of(text) > SUMMARY_SIZE_MAX)
    assert 0 < size_of(summary) <= (SUMMARY_SIZE_MAX if levels.summary else size_of(text))
    gist = levels.to_plain_text("gist")
    assert 0 < size_of(gist) <= GIST_SIZE_MAX
    if levels.gist:
        assert size_of(gist) < size_of(summary)
        assert len(gist.splitlines()) == 1
    (summary + gist).encode()


def test_a_short_text_is_all_there_is() -> None:
    assert levels_of("") is None
    assert levels_of("x" * GIST_SIZE_MAX) is None
    assert levels_of_result("now", "success", "x" * GIST_SIZE_MAX, size=10**9) is None


def test_a_text_of_middling_length_has_a_gist_and_no_summary() -> None:
    text = "word " * 60
    levels = _levels(text)
    assert levels.summary == ()
    assert levels.to_plain_text("summary") == text
    assert size_of(levels.to_plain_text("gist")) <= GIST_SIZE_MAX


def test_the_text_itself_is_not_written_twice() -> None:
    text = "word " * 1_000
    line = entry_as_json(ModelInputEntry(content=text, sections=_levels(text)))
    assert '"live": [[""]]' in json.dumps(line)


def test_the_live_section_is_the_text_without_a_name() -> None:
    levels = levels_of("word " * 60)
    assert levels is not None
    assert levels.live == (("", "word " * 60),)


@given(TEXTS, st.text(max_size=80), st.none() | st.integers(0, 10**12))
def test_levels_are_bounded_and_the_same_every_time(
    text: str, tool_name: str, size: int | None
) -> None:
    levels = levels_of(text)
    assert levels == levels_of(text[:50] + text[50:])
    of_result = levels_of_result(tool_name, "failed", text, size=size)
    if levels is None or of_result is None:
        assert size_of(text) <= GIST_SIZE_MAX
        assert levels is of_result
    else:
        _check_bounds(text, levels)
        _check_bounds(text, of_result)
        assert "failed" in of_result.to_plain_text("gist")


@given(TEXTS)
def test_levels_are_made_of_the_texts_own_words_in_their_order(text: str) -> None:
    outline = outline_of(text)
    if not isinstance(outline, PassageOutline) or size_of(text) <= GIST_SIZE_MAX:
        return
    summary = outline.summary(SUMMARY_SIZE_MAX).removeprefix(outline.label)
    gist = outline.gist(GIST_SIZE_MAX).removeprefix(outline.label)
    quoted = [line for piece in MARK.split(summary) for line in piece.split("\n")]
    _check_order(one_line(text), quoted)
    if not MARK.match(gist):
        _check_order(one_line(text), gist.split("…"))


def _check_order(text: str, quoted: list[str]) -> None:
    place = 0
    for words in quoted:
        found = text.find(one_line(words), place)
        assert found >= 0
        place = found + len(one_line(words))


@given(JSON)
def test_the_shape_of_json_is_bounded_whatever_it_holds(value: JsonValue) -> None:
    for written in (
        json.dumps([value] * 7),
        json.dumps({"a": value, "b": [[value]] * 9}, indent=2),
    ):
        for text in (written, written[: len(written) * 2 // 3]):
            levels = levels_of(text)
            if levels is not None:
                _check_bounds(text, levels)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 300_000,
        " " * 300_000,
        "\n" * 300_000,
        "a\n" * 150_000,
        "." * 300_000,
        "[" * 300_000,
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 100_000,
        '["' + '\\"' * 150_000,
        "e" + "\u0301" * 300_000,
        "🇩🇪" * 150_000,
        "**" * 150_000,
        "- a\n" * 100_000,
    ],
    ids=lambda text: f"{text[:4]!r}",
)
def test_a_giant_of_one_sort_is_only_looked_at(text: str) -> None:
    _check_bounds(text, _levels(text))


def test_nothing_is_cut_inside_a_cluster_in_a_giant() -> None:
    text = "👩\u200d👧🇩🇪e\u0301" * 60_000
    for piece in MARK.split(_levels(text).to_plain_text("summary")):
        piece = piece.strip()
        for place in (text.find(piece), text.rfind(piece)):
            assert may_cut(text, place)
            assert may_cut(text, place + len(piece))
