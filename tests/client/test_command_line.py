"""What `nplt` makes of its arguments: questions, the last conversation, files, signals, help."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import orjson
import pytest
from tests.client.nplt_process import (
    NPLT,
    SECONDS_MAX,
    private_environment,
    run_nplt,
    running_server,
)

from nplt_client import sync
from nplt_client.cli import is_question, nplt
from nplt_server.cli import main as nplt_server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[str]:
    """The last conversation is that of one test."""
    with running_server(tmp_path / "server") as server:
        yield server


# ------------------------------------------------------------------------------
# Questions


def test_a_question_without_a_command_is_asked(server: str, tmp_path: Path) -> None:
    done = run_nplt("why is it so", "--json", home=tmp_path, server=server)
    assert orjson.loads(done.stdout)["text"] == "why is it so"


def test_options_may_come_before_the_question(server: str, tmp_path: Path) -> None:
    done = run_nplt("-m", "offline/echo", "good morning", home=tmp_path, server=server)
    assert (done.stdout, done.returncode) == ("good morning\n", 0)


@pytest.mark.parametrize("text", ["why is it so", "warum?", "今天天气怎么样", "été", "-", ""])
def test_an_argument_that_no_command_can_be_is_a_question(text: str) -> None:
    assert is_question(text)


@pytest.mark.parametrize("word", ["sesions", "foo", "localhost:9999", "README.md"])
def test_a_single_word_is_not_a_question(word: str) -> None:
    assert not is_question(word)


def test_a_mistyped_command_gets_a_hint_and_asks_nothing(tmp_path: Path) -> None:
    done = run_nplt("sesions", "--json", home=tmp_path, server="nplt://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such command 'sesions'. Did you mean 'sessions'?" in done.stderr


def test_the_error_for_an_unquoted_question_suggests_quotes(tmp_path: Path) -> None:
    done = run_nplt("why", "is", "it", "so", home=tmp_path, server="nplt://127.0.0.1:1")
    assert done.returncode == 2
    assert "put it in quotes" in done.stderr


def test_a_single_word_that_resembles_no_command_is_asked(tmp_path: Path) -> None:
    done = run_nplt("hello", home=tmp_path, server="nplt://127.0.0.1:1")
    assert done.returncode == 5  # it tried to ask
    assert "127.0.0.1:1" in done.stderr


def test_the_error_for_a_word_that_may_be_a_file_names_the_command_that_asks_it(
    tmp_path: Path,
) -> None:
    done = run_nplt("hello.txt", home=tmp_path, server="nplt://127.0.0.1:1")
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith("To ask it: nplt ask hello.txt")


def test_the_error_for_an_address_without_scheme_suggests_one(tmp_path: Path) -> None:
    done = run_nplt("localhost:9999", home=tmp_path)
    assert done.returncode == 2
    assert "nplt nplt://localhost:9999" in done.stderr


# ------------------------------------------------------------------------------
# The last conversation


def test_the_last_conversation_is_continued(own_server: str, tmp_path: Path) -> None:
    def asked(*arguments: str) -> dict[str, object]:
        done = run_nplt(*arguments, "--json", home=tmp_path, server=own_server)
        answer: dict[str, object] = orjson.loads(done.stdout)
        return answer

    asked("ask", "an older one")
    last = asked("ask", "the last one")["session_id"]
    for arguments in (("ask", "-c", "more"), ("ask", "-s", "@last", "more"), ("-c", "and more")):
        assert asked(*arguments)["session_id"] == last
    chatted = run_nplt("-c", home=tmp_path, server=own_server, stdin="in a chat\n")
    assert chatted.stdout == "in a chat\n"
    page = asked("history")
    assert page["session_id"] == last
    assert page["message_count"] == 10


def test_continue_without_any_conversation_begins_a_new_one(
    own_server: str, tmp_path: Path
) -> None:
    done = run_nplt("ask", "-c", "the first", home=tmp_path, server=own_server)
    assert (done.stdout, done.returncode) == ("the first\n", 0)
    assert done.stderr == "there is no conversation yet; this is a new one\n"


def test_last_is_not_the_pinned_conversation(own_server: str, tmp_path: Path) -> None:
    with sync.connect(own_server) as client:
        client.new("pinned")
        client.update(client.session_id, pinned=True)
    answer = run_nplt("ask", "--json", "the last one", home=tmp_path, server=own_server)
    page = run_nplt("history", "@last", "--json", home=tmp_path, server=own_server)
    assert orjson.loads(page.stdout)["session_id"] == orjson.loads(answer.stdout)["session_id"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["history", "usage", "context", "export"])
def test_commands_that_only_read_default_to_the_last_conversation(
    own_server: str, tmp_path: Path, command: str
) -> None:
    without = run_nplt(command, home=tmp_path, server=own_server)
    assert without.returncode == 2
    assert "there is no conversation yet" in without.stderr
    run_nplt("ask", "some words", home=tmp_path, server=own_server)
    assert run_nplt(command, home=tmp_path, server=own_server).returncode == 0


def test_the_last_conversation_can_be_renamed_and_deleted(own_server: str, tmp_path: Path) -> None:
    run_nplt("ask", "some words", home=tmp_path, server=own_server)
    renamed = run_nplt("rename", "@last", "my notes", home=tmp_path, server=own_server)
    assert "is now called 'my notes'" in renamed.stderr
    assert run_nplt("delete", "@last", home=tmp_path, server=own_server).returncode == 0
    assert run_nplt("history", home=tmp_path, server=own_server).returncode == 2


# ------------------------------------------------------------------------------
# The trash


@pytest.mark.slow
def test_deleted_conversations_are_listed_and_undeleted_by_name_or_prefix(
    own_server: str, tmp_path: Path
) -> None:
    def do(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_nplt(*arguments, home=tmp_path, server=own_server)

    assert do("sessions", "--trash").stderr == "no deleted conversations\n"
    session_id = orjson.loads(do("ask", "--json", "words to lose").stdout)["session_id"]
    for wanted in ("words to lose", session_id[:9], session_id):
        assert f"nplt undelete {session_id[:8]}" in do("delete", session_id).stderr
        assert do("sessions").stdout == ""
        shown = do("sessions", "--trash").stdout
        assert session_id[:8] in shown
        assert "words to lose" in shown
        row = orjson.loads(do("sessions", "--trash", "--json").stdout)[0]
        assert row["deleted_at"].endswith("+00:00")
        assert do("undelete", wanted).returncode == 0
        assert do("history", session_id).returncode == 0


@pytest.mark.slow
def test_an_ambiguous_name_of_deleted_conversations_lists_them(
    own_server: str, tmp_path: Path
) -> None:
    ids = []
    for _ in range(2):
        done = run_nplt("ask", "--json", "twins here", home=tmp_path, server=own_server)
        ids.append(orjson.loads(done.stdout)["session_id"])
        run_nplt("delete", ids[-1], home=tmp_path, server=own_server)
    done = run_nplt("undelete", "twins here", home=tmp_path, server=own_server)
    assert done.returncode == 2
    assert all(session_id in done.stderr for session_id in ids)
    unknown = run_nplt("undelete", "never there", home=tmp_path, server=own_server)
    assert unknown.returncode == 2
    assert "nplt sessions --trash" in unknown.stderr


# ------------------------------------------------------------------------------
# Files


def test_attached_files_are_sent_with_the_prompt(own_server: str, tmp_path: Path) -> None:
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(f"in {name}")
    files = [option for name in ("one.txt", "two.txt") for option in ("-a", str(tmp_path / name))]
    done = run_nplt("ask", "read these", *files, home=tmp_path, server=own_server)
    assert (done.stdout, done.returncode) == ("read these\n", 0)
    (record,) = (tmp_path / "server" / "data" / "history").glob("*.json")
    entries = orjson.loads(record.read_bytes())["messages"]
    (prompt,) = [entry for entry in entries if entry["kind"] == "model_input"]
    attached = [entry for entry in entries if entry["kind"] == "attachment"]
    assert [entry["filename"] for entry in attached] == ["one.txt", "two.txt"]
    assert all(entry["file_id"] in json.dumps(prompt) for entry in attached)


def test_a_missing_attachment_stops_ask_before_anything_is_sent(tmp_path: Path) -> None:
    done = run_nplt(
        "ask", "x", "-a", str(tmp_path / "gone"), home=tmp_path, server="nplt://127.0.0.1:1"
    )
    assert done.returncode == 3
    assert "can't read" in done.stderr


# ------------------------------------------------------------------------------
# Leaving


def turn_state(server: str, session_id: str) -> str:
    """When the turn is over; a client waits for that."""
    with sync.connect(server) as client:
        client.switch(session_id)
        client.ask_text("after it")  # comes after what is still running
        answers = [m for m in client.history().messages if m["role"] == "assistant"]
        return str(answers[0].get("state") or "completed")


@pytest.mark.slow
def test_ask_detach_prints_the_ids_and_the_turn_goes_on(server: str, tmp_path: Path) -> None:
    done = run_nplt("ask", "--detach", "!slow 1 the end", home=tmp_path, server=server)
    session_id, turn_id = done.stdout.split()
    assert done.returncode == 0
    assert f"nplt history {session_id[:8]}" in done.stderr
    assert turn_id
    assert turn_state(server, session_id) == "completed"


def test_ask_detach_with_json_prints_one_object(server: str, tmp_path: Path) -> None:
    done = run_nplt("ask", "--detach", "--json", "hello", home=tmp_path, server=server)
    assert set(orjson.loads(done.stdout)) == {"session_id", "turn_id", "state"}


def begun(server: str, home: Path) -> tuple[subprocess.Popen[str], str]:
    """A long answer whose beginning has been printed."""
    process = subprocess.Popen(
        [*NPLT, "ask", "--jsonl", "!slow 60"],
        env=private_environment(home, NPLT_SERVER=server),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    session_id = json.loads(process.stdout.readline())["session_id"]
    while json.loads(process.stdout.readline())["event"] != "delta":
        pass
    return process, session_id


def test_sigterm_cancels_the_answer(server: str, tmp_path: Path) -> None:
    process, session_id = begun(server, tmp_path)
    process.terminate()
    process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == -signal.SIGTERM
    assert turn_state(server, session_id) == "interrupted"


@pytest.mark.slow
def test_a_closed_pipe_cancels_the_answer(server: str, tmp_path: Path) -> None:
    process, session_id = begun(server, tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=SECONDS_MAX) == 141
    assert turn_state(server, session_id) == "interrupted"


# ------------------------------------------------------------------------------
# Help and times


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


ALL = dict([*commands(nplt, "nplt"), *commands(nplt_server, "nplt-server")])


@pytest.mark.parametrize("path", ALL)
def test_every_help_has_examples_and_the_exit_codes(path: str) -> None:
    shown = ALL[path].get_help(click.Context(ALL[path], info_name=path))
    examples = shown.split("Examples:\n")[1].split("\n\n")[0].splitlines()
    assert len(examples) >= 2
    for example in examples:
        assert re.search(rf"\b{path}\b", example) or path == "nplt-server"
    codes = ("0 success", "141") if path.startswith("nplt-server") else ("0 success", "130", "141")
    assert all(code in shown.split("Exit codes:")[1] for code in codes)


def test_people_are_shown_local_times_and_programs_utc(server: str, tmp_path: Path) -> None:
    run_nplt("ask", "what time is it", home=tmp_path, server=server)
    shown = {
        zone: run_nplt("sessions", home=tmp_path, server=server, environ={"TZ": zone}).stdout
        for zone in ("UTC0", "XXX-5")
    }
    assert shown["UTC0"] != shown["XXX-5"]
    assert "UTC" not in shown["UTC0"].splitlines()[0]
    rows = run_nplt("sessions", "--json", home=tmp_path, server=server, environ={"TZ": "XXX-5"})
    assert orjson.loads(rows.stdout)[0]["updated_at"].endswith("+00:00")


def test_status_starts_no_server(tmp_path: Path) -> None:
    done = run_nplt("status", home=tmp_path, environ={"NPLT_LISTEN__PORT": "1"})
    assert (done.returncode, done.stdout) == (5, "")
    assert "nplt server start" in done.stderr
    assert list(tmp_path.iterdir()) == []
