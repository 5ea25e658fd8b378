"""Listings: aligned, safe, and honest about what was cut."""

from __future__ import annotations

import io

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_client.render.reports import history_text, sessions_table, short_ids
from nplt_client.render.terminal import AnswerWriter, colour_wanted, dim
from nplt_client.render.text import dump_json, pad, shorten, table, width_of
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import HistoryPage, PageEdges, SessionRow


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def row(name: str, session_id: str) -> SessionRow:
    return SessionRow(
        session_id=session_id,
        name=name,
        message_count=3,
        created_at="2026-01-01T00:00:00Z",
        updated_at="2026-01-02T03:04:05.678Z",
        last_accessed="",
        is_current=False,
        model="offline/echo",
        state="idle",
        preview="",
    )


@given(st.text(max_size=30), st.integers(1, 20))
def test_a_shortened_text_never_exceeds_its_width(text: str, width: int) -> None:
    assert width_of(shorten(text, width)) <= max(width, 1)


@given(st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=10), st.integers(0, 20))
def test_a_padded_text_has_at_least_its_width(text: str, width: int) -> None:
    assert width_of(pad(text, width)) == max(width, width_of(text))


def test_columns_line_up_behind_wide_characters() -> None:
    lines = table(("A", "B"), [("漢字", "x"), ("ab", "y"), ("🎉🎉", "z")]).splitlines()
    assert {
        width_of(line[: line.index(mark)]) for line, mark in zip(lines, "Bxyz", strict=True)
    } == {6}


def test_a_hostile_name_does_not_break_out_of_its_cell() -> None:
    shown = sessions_table([row("evil\x1b]0;x\x07\nsecond line", "a" * 32)])
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 2
    assert "evil second line" in shown


def test_short_ids_grow_until_they_differ() -> None:
    assert short_ids(["abcdefgh1", "abcdefgh2"]) == {
        "abcdefgh1": "abcdefgh1",
        "abcdefgh2": "abcdefgh2",
    }
    assert short_ids(["1" * 32]) == {"1" * 32: "1" * 8}


def test_a_history_shows_roles_texts_and_the_cursor_of_older_messages() -> None:
    message: JsonObject = {
        "seq": 5,
        "role": "assistant",
        "content": "an \x1b[31manswer",
        "timestamp": "2026-01-02T03:04:05Z",
        "state": "interrupted",
        "tool_calls": [{"tool_name": "clock", "status": "success"}],
    }
    page = HistoryPage(
        session_id="s",
        name="notes",
        message_count=9,
        head_seq=9,
        messages=(message,),
        page=PageEdges(has_more_before=True, has_more_after=False, before=5, after=5),
    )
    text = history_text(page)
    assert "[5] assistant · 2026-01-02 03:04 · interrupted" in text
    assert "tool clock · success" in text
    assert "an answer" in text
    assert "--before 5" in text


@given(st.text(st.characters(codec="utf-8")))
def test_json_for_programs_is_exact_and_harmless_on_a_terminal(text: str) -> None:
    shown = dump_json({"text": text})
    assert orjson.loads(shown) == {"text": text}
    assert shown.isprintable() or not any(c < " " or "\x7f" <= c <= "\x9f" for c in shown)


def test_a_terminal_gets_safe_text_and_a_file_gets_the_exact_one() -> None:
    for stream, expected in ((Terminal(), "red\n"), (io.StringIO(), "\x1b[31mred\n")):
        answer = AnswerWriter(stream)
        for character in "\x1b[31mred":
            answer.write(character)
        answer.end_line()
        answer.end_line()
        assert stream.getvalue() == expected


@pytest.mark.parametrize(
    ("environ", "terminal", "wanted"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, True, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_colours_are_decided_for_each_stream(
    environ: dict[str, str], terminal: bool, wanted: bool
) -> None:
    stream = Terminal() if terminal else io.StringIO()
    assert colour_wanted(stream, environ) is wanted


def test_paint_that_is_off_adds_nothing() -> None:
    assert dim("x", enabled=False) == "x"
    assert dim("x", enabled=True) == "\x1b[2mx\x1b[0m"


def test_nothing_in_a_history_page_can_bring_an_escape_sequence() -> None:
    hostile = "\x1b]0;title\x07\x9b31m\u202e"
    message: JsonObject = dict.fromkeys(
        ("role", "content", "timestamp", "model", "state", "size", "truncated"), hostile
    )
    message |= {"seq": 1, "tool_calls": [{"tool_name": hostile, "status": hostile}]}
    page = HistoryPage(
        session_id=hostile,
        name=hostile,
        message_count=1,
        head_seq=1,
        messages=(message,),
        page=PageEdges(has_more_before=True, has_more_after=False, before=1, after=1),
    )
    shown = history_text(page)
    assert not set(shown) & {"\x1b", "\x07", "\x9b", "\u202e"}
