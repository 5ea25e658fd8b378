"""What the full-screen chat decides without a screen."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nplt_client.chat_vocabulary import VOCABULARY, help_rows, order_in, prompt_in
from nplt_client.connection_states import Offline, Online, Reconnecting
from nplt_client.errors import ConfigurationError, RequestRefused
from nplt_client.fullscreen.command_deeds import code_blocks
from nplt_client.fullscreen.commands import COMMANDS
from nplt_client.fullscreen.completion import suggestions
from nplt_client.fullscreen.editor import edit, editor_command
from nplt_client.fullscreen.picking import age, ranked
from nplt_client.fullscreen.prompt_history import PromptHistory
from nplt_client.fullscreen.recall import Recall
from nplt_client.fullscreen.status import StatusFacts, status_words
from nplt_client.fullscreen.theme_choice import remember_theme, remembered_theme
from nplt_client.tables import width_of

# Going back through earlier prompts


def test_up_and_down_go_through_earlier_prompts_and_back_to_the_draft() -> None:
    recall = Recall(["one", "two"])
    assert [recall.older("draft"), recall.older("two"), recall.older("one")] == ["two", "one", None]
    assert [recall.newer("one"), recall.newer("two"), recall.newer("draft")] == [
        "two",
        "draft",
        None,
    ]


def test_an_earlier_prompt_that_was_changed_is_a_draft_of_its_own() -> None:
    recall = Recall(["one", "two"])
    recall.older("")
    assert recall.older("two, changed") == "two"
    assert recall.newer("two") == "two, changed"


def test_the_same_prompt_twice_in_a_row_is_remembered_once() -> None:
    recall = Recall()
    assert [recall.remember(prompt) for prompt in ("a", "a", "b", "/undo", " ")] == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert recall.older("") == "/undo"
    assert recall.newest_first == ["b", "a"]


@given(st.lists(st.text(max_size=20), max_size=30))
@example(["one", "/undo", "//bin/sh", "/ two"])
def test_prompts_are_kept_between_chats_to_the_letter(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("state") / "deep" / "prompts.jsonl"
    history = PromptHistory(path, kept=10)
    for prompt in prompts:
        history.add(prompt)
    asked = [prompt for prompt in prompts if prompt_in(prompt) is not None]
    assert PromptHistory(path, kept=10).load() == asked[-10:]
    if asked:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert len(path.read_bytes().splitlines()) < 20


def test_a_damaged_or_missing_history_is_no_reason_to_fail(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    assert PromptHistory(path).load() == []
    path.write_bytes(b'"good"\n{"not": "text"}\n\xff\xfe\n"/undo"\n"also good"\n"torn')
    assert PromptHistory(path).load() == ["good", "also good"]
    PromptHistory(tmp_path).add("a folder stands where the file should")


# Commands


def test_every_command_of_the_screen_is_explained() -> None:
    assert set(COMMANDS) == set(VOCABULARY)
    assert len(help_rows(COMMANDS)) == len(COMMANDS)


def test_a_line_is_a_prompt_a_command_or_a_mistake() -> None:
    assert [prompt_in(line) for line in ("hello", "//bin/sh", "/help")] == [
        "hello",
        "/bin/sh",
        None,
    ]
    order = order_in("/RENAME  my notes ", COMMANDS)
    assert (order.name, order.argument) == ("rename", "my notes")
    with pytest.raises(RequestRefused, match="Did you mean /sessions"):
        order_in("/sesions", COMMANDS)
    with pytest.raises(RequestRefused, match="/rename needs NAME"):
        order_in("/rename", COMMANDS)


def lines(typed: str, **arguments: tuple[str, ...]) -> list[str]:
    return [found.line for found in suggestions(typed, COMMANDS, arguments)]


def test_a_half_typed_command_is_completed() -> None:
    assert lines("/re")[:3] == ["/rename ", "/retry", "/reconnect"]
    assert lines("/port") == ["/export "]
    assert lines("/") == [
        f"/{name}" + (" " if VOCABULARY[name].argument else "") for name in VOCABULARY
    ]
    assert lines("/help") == lines("//re") == lines("re") == lines("/re\n") == []


def test_arguments_are_completed_too(tmp_path: Path) -> None:
    models = ("openai/gpt-5", "openai/gpt-5-mini", "offline/echo")
    assert lines("/model gpt", model=models) == ["/model openai/gpt-5", "/model openai/gpt-5-mini"]
    assert lines("/model openai/gpt-5", model=models) == []
    (tmp_path / "notes.txt").touch()
    (tmp_path / "nested").mkdir()
    (tmp_path / ".hidden").touch()
    for hostile in ("n\x1b]0;PWNED\x07", "n\x9b2J", "n\nx", "n\u202ex", "n\udcff"):
        (tmp_path / hostile).touch()
    assert lines(f"/attach {tmp_path}/n") == [
        f"/attach {tmp_path}/nested/",
        f"/attach {tmp_path}/notes.txt",
    ]
    assert lines(f"/attach {tmp_path}/nowhere/x") == []


def test_code_is_found_in_an_answer() -> None:
    answer = "a\n```python\nx = 1\n```\nb\n~~~\ny\n```\n~~~\nc `z`\n```\nunfinished"
    assert code_blocks(answer) == ["x = 1\n", "y\n```\n"]


# Finding


def test_whole_words_come_before_letters_that_only_resemble_them() -> None:
    texts = {"1": "counting words", "2": "a word of caution", "3": "the count of words", "4": "x"}
    assert ranked("counting words", texts)[0] == "1"
    assert set(ranked("words count", texts)) == {"1", "3"}
    assert "1" in ranked("cuonting", texts)
    assert ranked("", texts) == list(texts)
    assert ranked("京都", {"1": "trip to 京都"}) == ["1"]


@given(st.text(max_size=30), st.dictionaries(st.text(max_size=3), st.text(max_size=40), max_size=6))
def test_whatever_is_typed_finds_only_what_is_there(typed: str, texts: dict[str, str]) -> None:
    found = ranked(typed, texts)
    assert len(found) == len(set(found))
    assert set(found) <= set(texts)


def test_ages_are_told_in_one_unit() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    ages = [
        age((now - timedelta(seconds=gone)).isoformat(), now) for gone in (5, 200, 8000, 200000)
    ]
    assert ages == ["now", "3 min", "2 h", "2 d"]
    assert age("no time", now) == age("2026-01-01", now) == ""


# The status line


def test_the_status_line_says_how_the_connection_is() -> None:
    for connection, words in (
        (Online(), "● online"),
        (Offline(reason="closed"), "○ offline"),
        (
            Reconnecting(attempt=3, in_seconds=4.2, reason="lost"),
            "◌ reconnecting in 4 s (attempt 3)",
        ),
        (Reconnecting(attempt=3, in_seconds=0.0, reason="lost"), "◌ reconnecting (attempt 3)"),
    ):
        assert status_words(StatusFacts(connection=connection, model="m"), 80).startswith(words)


def test_the_status_line_tells_all_it_knows() -> None:
    facts = StatusFacts(
        model="openai/gpt-5.2",
        name="notes",
        input_tokens=12_345,
        output_tokens=999,
        context_percent=41.6,
        cost="0.12 USD",
        others=("ada", "grace", "linus", "guido"),
        lag_seconds=0.8,
        is_running=True,
        waiting=2,
        attached=1,
    )
    assert status_words(facts, 300) == (
        "● online · answering (Esc stops) · 2 waiting · 1 file attached · lag 0.8 s · "
        "openai/gpt-5.2 · notes · "
        "context 42 % · with ada, grace, linus +1 · 12.3k in, 999 out · 0.12 USD"
    )
    assert "lag" not in status_words(StatusFacts(lag_seconds=0.4), 300)


@given(st.integers(20, 200), st.text(max_size=60), st.text(max_size=60))
def test_the_status_line_never_grows_beyond_its_line(width: int, model: str, name: str) -> None:
    words = status_words(StatusFacts(model=model, name=name, is_running=True, waiting=3), width)
    assert width_of(words) <= width
    assert "\n" not in words


# Editor and themes


def test_a_draft_can_be_written_in_ones_own_editor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "editor"
    script.write_text('#!/bin/sh\nprintf "\\nmore" >> "$2"\n')
    script.chmod(0o700)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"{script} --wait")
    assert edit("a draft") == "a draft\nmore"
    monkeypatch.setenv("EDITOR", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="can't start"):
        edit("a draft")
    assert editor_command({}) == ["vi"]
    assert editor_command({"EDITOR": "a", "VISUAL": "b -c"}) == ["b", "-c"]


def test_the_last_theme_is_remembered(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "theme"
    assert remembered_theme(file) == "dark"
    remember_theme(file, "light")
    assert remembered_theme(file) == "light"
    file.write_text("no such theme")
    assert remembered_theme(file) == "dark"
