"""What was said is there after a restart, and SIGTERM loses nothing."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.raw_client import (
    CHAT_TEXT,
    HISTORY_REQUEST,
    PROMPT,
    SESSION_EVENT,
    SESSION_LIST,
    SESSION_NEW,
    SESSION_SWITCH,
    TEXT_DELTA,
    TURN_FINISHED,
    RawClient,
)
from tests.support.server_process import ServerProcess, run_nplt_server

Start = Callable[..., ServerProcess]


def welcomed(server: ServerProcess) -> RawClient:
    client = RawClient(server.port)
    client.hello()
    return client


def everything(client: RawClient) -> list[tuple[object, ...]]:
    rows = client.request(SESSION_LIST).json["sessions"]
    deltas: list[tuple[object, ...]] = []
    for row in rows:
        page = client.request(HISTORY_REQUEST, {"session_id": row["session_id"], "limit": 200})
        deltas.append((row["session_id"], row["name"], row["message_count"], page.json["messages"]))
    return deltas


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_every_conversation_name_and_message_is_there_after_a_restart(
    server: ServerProcess, end: str
) -> None:
    with welcomed(server) as client:
        for name in ("groceries", "poems", "图书"):
            client.request(SESSION_NEW, {"name": name})
            for number in range(5):
                client.ask(f"{name} {number} é🙂")
        before = everything(client)
    getattr(server, end)()
    server.start()
    with welcomed(server) as client:
        assert everything(client) == before
        client.request(SESSION_SWITCH, {"session_id": "poems"})
        assert client.ask("and on it goes") == "and on it goes"


def test_conversation_files_are_valid_json_between_turns(server: ServerProcess) -> None:
    with welcomed(server) as client:
        for number in range(10):
            client.ask(f"line {number}")
            files = list((server.data_dir / "history").glob("session_*.json"))
            (document,) = [json.loads(path.read_text()) for path in files]
            assert [m["content"] for m in document["messages"]][-1] == f"line {number}"


def test_sigterm_lets_a_running_turn_finish_within_the_drain_time(start_server: Start) -> None:
    server = start_server(limits={"drain_seconds_max": 10})
    with welcomed(server) as client:
        client.request(PROMPT, {"text": "!slow 0.5 said to the end"})
        client.event(TEXT_DELTA)
        server.signal(signal.SIGTERM)
        assert client.event(SESSION_EVENT).json["event"] == "shutdown"
        assert client.event(TURN_FINISHED).json["state"] == "completed"
        client.until_closed()
    assert server.terminate() == 0


def test_sigterm_interrupts_a_turn_longer_than_the_drain_time_and_keeps_its_text(
    start_server: Start,
) -> None:
    server = start_server(limits={"drain_seconds_max": 0.1})
    with welcomed(server) as client:
        client.request(PROMPT, {"text": "!slow 60 a long story told slowly"})
        client.event(TEXT_DELTA)
        assert server.terminate() == 0
        assert client.event(TURN_FINISHED).json["state"] == "interrupted"
    server.start()
    with welcomed(server) as client:
        client.request(SESSION_SWITCH, {"session_id": everything(client)[0][0]})
        answer = client.request(HISTORY_REQUEST).json["messages"][-1]
    assert answer["state"] == "interrupted"
    assert "a long story told slowly".startswith(answer["content"].strip())


def test_a_second_sigterm_interrupts_the_drain(start_server: Start) -> None:
    server = start_server(limits={"drain_seconds_max": 3_600})
    with welcomed(server) as client:
        client.request(PROMPT, {"text": "!slow 3600 a very long story"})
        client.event(TEXT_DELTA)
        server.signal(signal.SIGTERM)
        assert client.event(SESSION_EVENT).json["event"] == "shutdown"
        assert server.terminate() == 0


def test_two_signals_at_once_interrupt_the_drain(start_server: Start) -> None:
    server = start_server(limits={"drain_seconds_max": 3_600})
    with welcomed(server) as client:
        client.request(PROMPT, {"text": "!slow 3600 a very long story"})
        client.event(TEXT_DELTA)
        # While it is stopped, both arrive before it can act on the first.
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            server.signal(number)
        assert client.event(TURN_FINISHED).json["state"] == "interrupted"
        client.until_closed()


def test_prompts_are_refused_while_the_server_drains(start_server: Start) -> None:
    server = start_server(limits={"drain_seconds_max": 20})
    with welcomed(server) as client, welcomed(server) as other:
        client.request(PROMPT, {"text": "!slow 1 still talking"})
        server.signal(signal.SIGTERM)
        client.event(SESSION_EVENT)
        refusal = other.request(PROMPT, {"text": "too late"}).json
        assert (refusal["code"], refusal["retryable"]) == ("shutting_down", True)


def test_after_a_kill_the_running_turn_is_interrupted_and_queued_prompts_run(
    server: ServerProcess,
) -> None:
    with welcomed(server) as client:
        client.request(PROMPT, {"text": "!slow 60 running"})
        client.event(TEXT_DELTA)
        client.request(PROMPT, {"text": "I waited"})
    server.kill()
    server.start()
    with welcomed(server) as client:
        (row,) = client.request(SESSION_LIST).json["sessions"]
        client.request(SESSION_SWITCH, {"session_id": row["session_id"]})
        while client.request(HISTORY_REQUEST).json["message_count"] < 4:
            pass  # it runs as soon as someone comes
        page = client.request(HISTORY_REQUEST, {"roles": ["user", "assistant", "system"]}).json
        answers = [(m["content"], m["state"]) for m in page["messages"] if m["role"] == "assistant"]
        assert answers == [("running", "interrupted"), ("I waited", "completed")]


def test_a_second_server_on_the_same_data_directory_refuses_to_start(server: ServerProcess) -> None:
    second = run_nplt_server("--data-dir", str(server.data_dir), "--port", "0")
    assert second.returncode == 1
    assert "in use" in second.stderr


def test_a_port_in_use_is_reported_in_one_sentence(server: ServerProcess, tmp_path: Path) -> None:
    second = run_nplt_server("--data-dir", str(tmp_path / "other"), "--port", str(server.port))
    assert second.returncode == 1
    assert f":{server.port}" in second.stderr
    assert "Traceback" not in second.stderr


def test_the_debug_log_reads_as_a_transcript(start_server: Start) -> None:
    server = start_server("--log-level", "debug")
    with RawClient(server.port) as client:
        client.greeting()
        client.send(CHAT_TEXT, 0, "hello")
        client.chat_frames()
    server.terminate()
    lines = [
        line.split(" ", 3)[-1].partition(" request=")[0]
        for line in server.log.splitlines()
        if " < " in line or " > " in line
    ]
    assert "< CHAT_TEXT #0 hello [5 bytes]" in lines
    assert '> AGENT_THOUGHT #2 {"type":"stream_start"} [23 bytes]' in lines
