"""Log lines for people and machines, and the parts of the server that NPLT_DEBUG shows."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.logging_state import restored_logging

from nplt_server import logs
from nplt_server.logs import JsonLines, TextLines, configure_logging, transcript_for

log = logging.getLogger("nplt_server.some_room")
Lines = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    with restored_logging():
        yield


def lines_of(
    monkeypatch: pytest.MonkeyPatch,
    *,
    categories: str = "",
    level: str = "info",
    log_format: Literal["text", "json"] = "text",
) -> Lines:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setenv("NPLT_DEBUG", categories)
    configure_logging(level, log_format=log_format)
    return lambda: written.getvalue().splitlines()


def test_a_text_log_line_begins_with_date_time_and_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(monkeypatch)
    log.info("listening on %s", "here")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} I listening on here", lines()[0])


def test_fields_follow_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(monkeypatch)
    log.warning("slow", extra={"fields": {"seconds": 1.5, "tool": "a b", "why": None}})
    assert lines()[0].partition(" ")[2] == "W slow seconds=1.5 tool='a b' why=None"


def test_a_vendors_library_stays_quiet_whatever_its_own_variable_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = lines_of(monkeypatch, level="debug")
    histories = logging.getLogger("openai._base_client")
    logging.getLogger("openai").setLevel(logging.DEBUG)  # as OPENAI_LOG does, at import
    try:
        histories.debug("Request options: %s", {"headers": "all of them"})
        histories.warning("told")
    finally:
        logging.getLogger("openai").setLevel(logging.WARNING)
    assert [line.partition(" ")[2] for line in lines()] == ["W told"]


def test_a_category_that_is_on_says_its_name_and_its_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = lines_of(monkeypatch, categories="history, Tools")
    logs.history("appended", seq=3, kind="model_input")
    logs.tools("100%s of nothing")
    logs.context("compiled", tokens=5)
    assert [line.partition(" ")[2] for line in lines()] == [
        "D history  appended seq=3 kind=model_input",
        "D tools    100%s of nothing",
    ]


def test_all_of_them_are_on_with_all_and_off_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines_of(monkeypatch, categories="all")
    assert all(category.on for category in logs.CATEGORIES.values())
    lines_of(monkeypatch)
    assert not any(category.on for category in logs.CATEGORIES.values())


def test_an_unknown_debug_category_is_logged_once_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = lines_of(monkeypatch, categories="histroy,history,tols")
    assert [line.partition(" ")[2] for line in lines()] == [
        "W NPLT_DEBUG: no category histroy, tols; "
        "there are history, provider, tools, context, tokens, wire, all"
    ]
    assert logs.history.on


@pytest.mark.parametrize(
    ("categories", "level", "shown"),
    [("", "info", False), ("history", "info", False), ("wire", "info", True), ("", "debug", True)],
)
def test_transcripts_are_written_when_the_wire_or_everything_is_shown(
    monkeypatch: pytest.MonkeyPatch, categories: str, level: str, shown: bool
) -> None:
    lines = lines_of(monkeypatch, categories=categories, level=level)
    transcript = transcript_for("peer 1")
    assert (transcript is not None) == shown
    if transcript is not None:
        transcript("< PING #1")
        assert lines()[-1].partition(" ")[2] == "D peer 1 < PING #1"


def test_as_json_a_line_is_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(monkeypatch, categories="tokens", log_format="json")
    logs.tokens("counted", tokens=12, counter="o200k")
    read = json.loads(lines()[0])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", read.pop("time"))
    assert read == {
        "level": "debug",
        "logger": "nplt.tokens",
        "message": "counted",
        "fields": {"tokens": 12, "counter": "o200k"},
    }


def test_as_json_an_exception_is_part_of_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(monkeypatch, log_format="json")
    try:
        raise ValueError("no such\nthing")
    except ValueError:
        log.exception("failed")
    assert len(lines()) == 1
    assert json.loads(lines()[0])["exception"].endswith("ValueError: no such\nthing")


values = st.none() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()))


@given(
    st.text(st.characters(exclude_categories=())),
    st.dictionaries(st.text(min_size=1), values, max_size=4),
)
def test_whatever_is_logged_is_one_line_of_json(message: str, fields: dict[str, object]) -> None:
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "%s", (message,), None)
    record.fields = fields
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line)["level"] == "info"


@given(st.text(st.characters(exclude_categories=())))
def test_no_value_of_a_field_breaks_its_line_or_passes_for_another(value: str) -> None:
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "m", (), None)
    record.fields = {"key": value}
    line = TextLines().format(record)
    shown = line.partition("key=")[2]
    assert line.isprintable()
    assert shown.startswith(("'", '"')) or not set(shown) & set(' "=')
