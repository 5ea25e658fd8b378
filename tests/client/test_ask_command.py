"""`nplt ask` as a process: what goes to stdout, what to stderr, and the exit code."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import orjson
import pytest
from tests.client.nplt_process import (
    NPLT,
    SECONDS_MAX,
    default_ctrl_c,
    private_environment,
    run_nplt,
)
from tests.client.scripted_peer import (
    SESSION,
    Script,
    Talk,
    delta,
    finished,
    scripted_peer,
    started,
)

from nplt_protocol.codes import ErrorCode, MessageType
from nplt_protocol.messages import (
    ActiveTurn,
    Attach,
    Attached,
    Cancel,
    Cancelled,
    Hello,
    HistoryPage,
    HistoryRequest,
    MessageRange,
    PageEdges,
    Prompt,
    SessionEvent,
)


def test_only_the_answer_goes_to_stdout(server: str, tmp_path: Path) -> None:
    done = run_nplt("ask", "good morning", home=tmp_path, server=server)
    assert (done.stdout, done.stderr, done.returncode) == ("good morning\n", "", 0)


def test_stdin_alone_is_the_prompt(server: str, tmp_path: Path) -> None:
    for arguments in (("ask",), ("ask", "-")):
        done = run_nplt(*arguments, home=tmp_path, server=server, stdin="from a pipe\n")
        assert (done.stdout, done.returncode) == ("from a pipe\n", 0)


def test_stdin_next_to_an_argument_is_context(server: str, tmp_path: Path) -> None:
    done = run_nplt("ask", "sum this up:", home=tmp_path, server=server, stdin="line 1\nline 2\n")
    assert done.stdout == "sum this up:\n\nline 1\nline 2\n"


def test_without_streaming_the_answer_is_the_same(server: str, tmp_path: Path) -> None:
    done = run_nplt("ask", "--no-stream", "a b c", home=tmp_path, server=server)
    assert (done.stdout, done.returncode) == ("a b c\n", 0)


def test_ask_json_prints_one_object_with_everything(server: str, tmp_path: Path) -> None:
    done = run_nplt("ask", "--json", "hello", home=tmp_path, server=server)
    answer = orjson.loads(done.stdout)
    assert set(answer) == {
        "session_id",
        "turn_id",
        "text",
        "model",
        "usage",
        "state",
        "tool_calls",
    }
    assert (answer["text"], answer["model"], answer["state"], answer["tool_calls"]) == (
        "hello",
        "offline/echo",
        "completed",
        [],
    )


def test_json_lines_report_the_turn_event_by_event(server: str, tmp_path: Path) -> None:
    done = run_nplt("ask", "--jsonl", "!think well hello", home=tmp_path, server=server)
    events = [orjson.loads(line) for line in done.stdout.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "init"
    assert kinds[-2:] == ["usage", "result"]
    assert {"thought", "delta"} <= set(kinds)
    text = "".join(event["text"] for event in events if event["event"] == "delta")
    assert text == events[-1]["text"]
    assert events[0]["turn_id"] == events[-1]["turn_id"]


def test_json_lines_report_tool_calls_and_their_results(server: str, tmp_path: Path) -> None:
    done = run_nplt("ask", "--jsonl", "!tool now {}", home=tmp_path, server=server)
    events = [orjson.loads(line) for line in done.stdout.splitlines()]
    by_event = {event["event"]: event for event in events}
    assert list(by_event) == ["init", "tool_use", "tool_result", "delta", "usage", "result"]
    assert by_event["tool_use"]["tool_call_id"] == by_event["tool_result"]["tool_call_id"]
    assert (by_event["tool_result"]["status"], by_event["tool_use"]["arguments"]) == ("success", {})
    assert by_event["result"]["tool_calls"][0]["result"] == by_event["tool_result"]["result"]


def test_ask_continues_a_conversation_by_id_and_by_name(server: str, tmp_path: Path) -> None:
    first = orjson.loads(run_nplt("ask", "--json", "one", home=tmp_path, server=server).stdout)
    session_id = first["session_id"]
    name = f"notes {session_id[:6]}"
    assert run_nplt("rename", session_id, name, home=tmp_path, server=server).returncode == 0
    for wanted in (session_id[:12], name):
        done = run_nplt("ask", "--json", "-s", wanted, "more", home=tmp_path, server=server)
        assert orjson.loads(done.stdout)["session_id"] == session_id
    page = run_nplt("history", session_id, "--json", home=tmp_path, server=server)
    assert orjson.loads(page.stdout)["message_count"] == 6


def test_a_system_message_begins_a_conversation(server: str, tmp_path: Path) -> None:
    done = run_nplt("ask", "--json", "--system", "Be brief.", "hi", home=tmp_path, server=server)
    assert (done.returncode, orjson.loads(done.stdout)["text"]) == (0, "hi")


def test_stdout_to_a_file_gets_the_exact_text(server: str, tmp_path: Path) -> None:
    hostile = "red \x1b[31m and \x9b2J and \u202e"
    done = run_nplt("ask", hostile, home=tmp_path, server=server)
    assert done.stdout == hostile + "\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("ask", ""), 2),
        (("ask", "--no-such-option", "x"), 2),
        (("ask", "--timeout", "0", "x"), 2),
        (("ask", "-s", "no such conversation", "x"), 2),
        (("ask", "-m", "no/model", "x"), 2),
        (("no-such-command",), 2),
        (("ask", "--server", "http://x", "x"), 3),
        (("ask", "--server", "nplt://127.0.0.1:1", "x"), 5),
        (("ask", "!fail"), 6),
        (("ask", "--timeout", "0.3", "!slow 30"), 7),
        (("ask", "x" * 2_000), 0),
    ],
)
def test_the_exit_code_says_what_happened(
    server: str, tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    done = run_nplt(*arguments, home=tmp_path, server=server)
    assert done.returncode == code, done
    assert bool(done.stderr) == bool(code)
    assert "Traceback" not in done.stderr


def refuses_the_token(talk: Talk) -> None:
    talk.greet()
    seq, _ = talk.expect(Hello)
    talk.refuse(seq, ErrorCode.UNAUTHORIZED, "who are you?")


def speaks_something_else(talk: Talk) -> None:
    talk.greet()
    talk.expect(Hello)
    seq = 1
    talk.send(b"\x02\x00" + bytes([seq]) + b"\x00\x04{..}")
    talk.wait_until_gone()


def takes_little(talk: Talk) -> None:
    talk.welcome(limits={"message_bytes_max": 1_000})
    talk.wait_until_gone()


def is_busy(talk: Talk) -> None:
    talk.welcome()
    seq, _ = talk.expect(Prompt)
    talk.refuse(seq, ErrorCode.BUSY, "too many prompts wait")
    talk.wait_until_gone()


def is_broken(talk: Talk) -> None:
    talk.welcome()
    seq, _ = talk.expect(Prompt)
    talk.refuse(seq, ErrorCode.INTERNAL, "a mistake of the server's own")
    talk.wait_until_gone()


def goes_away(talk: Talk) -> None:
    talk.welcome()
    talk.take_prompt(events=(started(), delta("half", 0)))


def is_interrupted(talk: Talk) -> None:
    talk.welcome()
    talk.take_prompt(events=(started(), delta("half", 0), finished(state="interrupted")))
    talk.wait_until_gone()


@pytest.mark.parametrize(
    ("script", "code", "shown"),
    [
        (is_broken, 1, ""),
        (refuses_the_token, 4, ""),
        (speaks_something_else, 8, ""),
        (takes_little, 9, ""),
        (is_busy, 9, ""),
        (goes_away, 5, "half\n"),
        (is_interrupted, 130, "half\n"),
    ],
)
def test_each_failure_of_the_server_has_its_own_exit_code(
    tmp_path: Path, script: Script, code: int, shown: str
) -> None:
    with scripted_peer(script) as peer:
        at_once = {"NPLT_RECONNECT_SECONDS": "0"}
        done = run_nplt("ask", "x" * 2_000, home=tmp_path, server=peer.url, environ=at_once)
    assert (done.returncode, done.stdout) == (code, shown), done
    assert len(done.stderr.splitlines()) == 1


def test_a_token_from_a_file_reaches_the_server(tmp_path: Path) -> None:
    hellos: list[Hello] = []

    def script(talk: Talk) -> None:
        hellos.append(talk.welcome())
        talk.answer("ok")
        talk.wait_until_gone()

    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "token").chmod(0o600)
    environ = {"NPLT_TOKEN_FILE": str(tmp_path / "token")}
    with scripted_peer(script) as peer:
        done = run_nplt("ask", "hi", home=tmp_path, server=peer.url, environ=environ)
    assert (done.stdout, hellos[0].token) == ("ok\n", "s3cret")


def test_hostile_text_from_the_server_is_sanitized_on_stderr(tmp_path: Path) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        seq, _ = talk.expect(Prompt)
        talk.refuse(seq, ErrorCode.CONFLICT, "no \x1b]0;owned\x07\x1b[2J way")
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        done = run_nplt("ask", "hi", home=tmp_path, server=peer.url)
    assert done.stderr == "nplt: no  way\n"


def test_a_broken_pipe_on_stdout_ends_ask_silently(server: str, tmp_path: Path) -> None:
    environ = private_environment(tmp_path, NPLT_SERVER=server)
    with subprocess.Popen(
        [*NPLT, "ask", "!slow 3"],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as asking:
        assert asking.stdout is not None
        assert asking.stderr is not None
        assert asking.stdout.read(1)
        asking.stdout.close()
        assert asking.wait(timeout=SECONDS_MAX) == 141
        assert asking.stderr.read() == b""


def test_ask_works_with_closed_standard_streams(server: str, tmp_path: Path) -> None:
    for closed in ("<&-", ">&-", "2>&-"):
        command = ("sh", "-c", f'exec "$@" {closed}', "sh", *NPLT)
        done = run_nplt("ask", "hi", home=tmp_path, server=server, command=command)
        assert done.returncode == 0, (closed, done)
        assert done.stderr == ""


def test_a_full_disk_behind_stdout_is_reported(server: str, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    command = ("sh", "-c", 'exec "$@" >/dev/full', "sh", *NPLT)
    done = run_nplt("ask", "hi", home=tmp_path, server=server, command=command)
    assert (done.returncode, done.stderr) == (1, "nplt: No space left on device\n")


def test_an_interrupt_cancels_the_turn_on_the_server() -> None:
    cancelled: list[Cancel] = []

    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(started(), delta("half", 0)))
        seq, request = talk.expect(Cancel)
        cancelled.append(request)
        talk.reply(MessageType.CANCEL, seq, Cancelled(cancelled=True))
        talk.say(finished(state="interrupted"))
        talk.wait_until_gone()

    with (
        scripted_peer(script) as peer,
        subprocess.Popen(
            [*NPLT, "ask", "--server", peer.url, "go on"],
            preexec_fn=default_ctrl_c,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as asking,
    ):
        assert asking.stdout is not None
        assert asking.stdout.read(4) == b"half"
        os.kill(asking.pid, signal.SIGINT)
        assert asking.wait(timeout=SECONDS_MAX) == 130
        assert asking.stdout.read() == b"\n"
    assert cancelled == [Cancel(turn_id="turn-1")]


def test_an_interrupt_before_the_receipt_still_cancels(tmp_path: Path) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        prompt_seq, _ = talk.expect(Prompt)
        os.kill(asking.pid, signal.SIGINT)
        seq, request = talk.expect(Cancel)
        assert request.turn_id is None
        talk.refuse(prompt_seq, ErrorCode.BUSY, "never mind")
        talk.reply(MessageType.CANCEL, seq, Cancelled(cancelled=True))
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        asking = subprocess.Popen(
            [*NPLT, "ask", "go"],
            env=private_environment(tmp_path, NPLT_SERVER=peer.url),
            preexec_fn=default_ctrl_c,
            stdin=subprocess.DEVNULL,
        )
        assert asking.wait(timeout=SECONDS_MAX) == 130


def lagged() -> SessionEvent:
    return SessionEvent(session_id=SESSION, event="lagged", details={"head_seq": 2})


def attach_again(talk: Talk, *, running: ActiveTurn | None) -> Attach:
    seq, request = talk.expect(Attach)
    attached = Attached(
        session_id=SESSION, name="n", model="m", head_seq=2, active_turn=running, queue=()
    )
    talk.reply(MessageType.ATTACH, seq, attached)
    return request


def test_an_answer_is_resumed_after_its_events_lagged(tmp_path: Path) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(started(), delta("one ", 0), lagged()))
        running = ActiveTurn(turn_id="turn-1", call=0, offset=7, model="m")
        place = attach_again(talk, running=running)
        assert (place.turn_id, place.call, place.offset) == ("turn-1", 0, 4)
        talk.say(delta("two", 4), finished())
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        done = run_nplt("ask", "go", home=tmp_path, server=peer.url)
    assert (done.stdout, done.returncode) == ("one two\n", 0)


def test_an_answer_that_ended_meanwhile_is_read_from_the_record(tmp_path: Path) -> None:
    whole = "one two three"

    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(started(), delta("one ", 0), lagged()))
        attach_again(talk, running=None)
        seq, _ = talk.expect(HistoryRequest)
        end = {"kind": "model_output", "state": "completed", "call": 0}
        cut = {**end, "seq": 2, "role": "assistant", "turn_id": "turn-1", "content": whole[:7]}
        page = HistoryPage(
            session_id=SESSION,
            name="n",
            message_count=2,
            head_seq=2,
            messages=({**cut, "truncated": True, "size": len(whole)},),  # type: ignore[dict-item]
            page=PageEdges(has_more_before=True, has_more_after=False, before=2, after=2),
        )
        talk.reply(MessageType.HISTORY_REQUEST, seq, page)
        seq, rest = talk.expect(HistoryRequest)
        assert (rest.seq, rest.offset) == (2, 7)
        part = MessageRange(session_id=SESSION, seq=2, offset=7, content=whole[7:], size=len(whole))
        talk.reply(MessageType.HISTORY_REQUEST, seq, part)
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        done = run_nplt("ask", "go", home=tmp_path, server=peer.url)
    assert (done.stdout, done.returncode) == (whole + "\n", 0)


@pytest.mark.parametrize("option", ["--json", "--jsonl"])
def test_a_failed_turn_is_reported_as_json_too(server: str, tmp_path: Path, option: str) -> None:
    done = run_nplt("ask", option, "!fail", home=tmp_path, server=server)
    lines = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 6
    assert lines[-1]["state"] == "failed"
    assert lines[-1]["error"]["code"].startswith("provider_")
    if option == "--jsonl":
        assert [line["event"] for line in lines] == ["init", "usage", "error", "result"]
