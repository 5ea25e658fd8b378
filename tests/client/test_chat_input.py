"""Typing a prompt: earlier ones, completion, one's own editor."""

from __future__ import annotations

import stat
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nplt_client.chat.commands import COMMANDS
from nplt_client.chat.input import (
    edit_in_editor,
    editor_command,
    suggestions,
)
from nplt_client.chat.prompt_history import PromptHistory, PromptRecall, parse_prompt
from nplt_client.chat.prompt_text import PastedTexts, mentioned_files
from nplt_client.errors import ConfigurationError, RequestRefused


def test_up_and_down_go_through_earlier_prompts_and_back_to_the_draft() -> None:
    recall = PromptRecall(["one", "two"])
    assert [recall.older("draft"), recall.older("two"), recall.older("one")] == ["two", "one", None]
    assert [recall.newer("one"), recall.newer("two"), recall.newer("draft")] == [
        "two",
        "draft",
        None,
    ]


def test_an_edited_earlier_prompt_becomes_the_draft() -> None:
    recall = PromptRecall(["one", "two"])
    recall.older("")
    assert recall.older("two, changed") == "two"
    assert recall.newer("two") == "two, changed"


def test_the_prompt_history_stores_a_repeated_prompt_once() -> None:
    recall = PromptRecall()
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
def test_the_prompt_history_is_kept_exactly_between_chats(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("state") / "deep" / "prompts.jsonl"
    history = PromptHistory(path, kept=10)
    for prompt in prompts:
        history.add(prompt)
    asked = [prompt for prompt in prompts if parse_prompt(prompt) is not None]
    assert PromptHistory(path, kept=10).load() == [text for text, _ in groupby(asked[-10:])]
    if asked:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert len(path.read_bytes().splitlines()) < 20


def test_a_damaged_or_missing_prompt_history_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    assert PromptHistory(path).load() == []
    path.write_bytes(b'"good"\n{"not": "text"}\n\xff\xfe\n"/undo"\n"also good"\n"torn')
    assert PromptHistory(path).load() == ["good", "also good"]
    PromptHistory(tmp_path).add("a folder stands where the file should")


def test_redacted_prompts_are_dropped_from_the_history_with_all_of_the_same_text(
    tmp_path: Path,
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"typed long ago"\n"my key"\n')
    history = PromptHistory(path)
    for text, message_id in [
        ("my key", "m-1"),
        ("other", "m-2"),
        ("my key", "m-3"),
        ("//x", "m-4"),
    ]:
        history.add(text, message_id)
    assert history.forget(["m-9", ""]) == set()
    assert history.forget({"m-1"}) == {"my key"}
    assert PromptHistory(path).load() == ["typed long ago", "other", "//x"]
    assert b"my key" not in path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_up_does_not_bring_back_a_dropped_prompt() -> None:
    recall = PromptRecall(["one", "secret", "two"])
    recall.forget({"secret"})
    assert [recall.older(""), recall.older("two"), recall.older("one")] == ["two", "one", None]


def lines(typed: str, models: tuple[str, ...] = ()) -> list[str]:
    return [found.line for found in suggestions(typed, models)]


def test_a_half_typed_command_is_completed() -> None:
    assert lines("/re")[:3] == ["/rename ", "/redo", "/retry"]
    assert lines("/port") == ["/export "]
    assert lines("/") == [
        f"/{name}" + (" " if COMMANDS[name].argument else "") for name in COMMANDS
    ]
    assert lines("/help") == lines("//re") == lines("re") == lines("/re\n") == []


def test_arguments_are_completed_too(tmp_path: Path) -> None:
    models = ("openai/gpt-5", "openai/gpt-5-mini", "offline/echo")
    assert lines("/model gpt", models=models) == ["/model openai/gpt-5", "/model openai/gpt-5-mini"]
    assert lines("/model openai/gpt-5", models=models) == []
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


def test_names_of_conversations_are_completed() -> None:
    names = ("trip to Kyoto", "release notes")
    assert [one.line for one in suggestions("/switch ", (), names)] == [
        "/switch trip to Kyoto",
        "/switch release notes",
    ]
    assert [one.line for one in suggestions("/delete NOT", (), names)] == ["/delete release notes"]
    assert suggestions("/switch release notes", (), names) == []


def test_a_draft_can_be_edited_in_an_external_editor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "editor"
    script.write_text('#!/bin/sh\nprintf "\\nmore" >> "$2"\n')
    script.chmod(0o700)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"{script} --wait")
    assert edit_in_editor("a draft") == "a draft\nmore"
    monkeypatch.setenv("EDITOR", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="can't start"):
        edit_in_editor("a draft")
    assert editor_command({}) == ["vi"]
    assert editor_command({"EDITOR": "a", "VISUAL": "b -c"}) == ["b", "-c"]


def test_a_file_after_an_at_sign_is_completed_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("x" * 1_200)
    (tmp_path / "my notes.txt").touch()
    (tmp_path / "nested").mkdir()
    found = suggestions("compare @n", ())
    assert [(one.line, one.help) for one in found] == [
        ("compare @nested/", "directory"),
        ("compare @notes.txt ", "1.2 kB"),
    ]
    assert lines('and @"my') == ['and @"my notes.txt" ']
    assert lines("mail me@no") == lines("@nobody") == lines("@notes.txt") == []


def test_files_that_a_prompt_names_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").touch()
    (tmp_path / "b c.txt").touch()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").touch()
    text = 'see @a.txt, @"b c.txt" and @a.txt; ask @ada or me@a.txt'
    assert mentioned_files(text) == [Path("a.txt"), Path("b c.txt")]
    assert mentioned_files(text, not_typed=["a log with @a.txt"]) == [Path("b c.txt")]
    with pytest.raises(RequestRefused, match=r"@src is a directory; .* such as @src/main.py"):
        mentioned_files("read @src please")


def test_a_long_paste_is_a_chip_until_it_is_opened_or_sent() -> None:
    pasted, text = PastedTexts(), "\n".join(map(str, range(45)))
    assert pasted.take("short\npaste") == "short\npaste"
    chip = pasted.take(text)
    assert chip == "[paste 1: 45 lines]"
    assert pasted.expand(f"why? {chip} {chip[:-3]}") == f"why? {text} {text}"
    assert pasted.expand("[paste 7: 9 lines]") == "[paste 7: 9 lines]", "somebody wrote it"
    (opening,) = suggestions(f"why? {chip}", (), (), pasted)
    assert (opening.line, opening.is_by_tab) == (f"why? {text}", True)
    assert suggestions(f"{chip} why?", (), (), pasted) == []
    assert pasted.take_prompt(f"see {chip}") == f"see {text}"
    assert pasted.take_noted() == ("short\npaste", text)
    assert pasted.take_noted() == ()
