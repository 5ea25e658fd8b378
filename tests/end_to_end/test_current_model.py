"""The model that is shown is the model that answers next, for every client, at any time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.client.chat_face import chat_with
from tests.client.nplt_process import run_nplt
from tests.conftest import Connect
from tests.support.raw_client import (
    ATTACH,
    ENTRY,
    HISTORY_REQUEST,
    MODEL_SWITCH,
    PROMPT,
    SESSION_DELETE,
    SESSION_EVENT,
    SESSION_FORK,
    SESSION_LIST,
    SESSION_NEW,
    SESSION_SWITCH,
    TURN_FINISHED,
    TURN_STARTED,
    Frame,
    RawClient,
)
from tests.support.server_process import ServerProcess

from nplt_client.chat.commands import run_command

FIRST, SECOND = "first/echo", "second/echo"
ECHOES = [{"id": name, "type": "offline", "words_per_second": 0} for name in ("first", "second")]


@pytest.fixture
def server(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    return start_server(providers=ECHOES, default_model=FIRST)


@pytest.fixture
def url(server: ServerProcess) -> str:
    return f"nplt://127.0.0.1:{server.port}"


def answer_to(client: RawClient, text: str = "hello", **how: str) -> dict[str, str]:
    """Which model each message says answers, or has answered."""
    receipt = client.request(PROMPT, {"text": text, **how}).json
    named = {"receipt": receipt["model"]}
    for event in client.events():
        if event.type == TURN_STARTED:
            named["started"] = event.json["model"]
        if event.type == ENTRY and event.json["entry"]["role"] == "assistant":
            invocation = event.json["entry"]["invocation"]
            named["entry"] = f"{invocation['provider']}/{invocation['model']}"
        if event.type == TURN_FINISHED:
            named["finished"] = event.json["model"]
            return named
    raise AssertionError("unreachable")


def all_say(model: str) -> dict[str, str]:
    return dict.fromkeys(("receipt", "started", "entry", "finished"), model)


def listed(client: RawClient) -> dict[str, str]:
    rows = client.request(SESSION_LIST).json["sessions"]
    return {row["session_id"]: row["model"] for row in rows}


def current(client: RawClient) -> str:
    return str(client.request(MODEL_SWITCH).json["model"])


def kinds(client: RawClient) -> list[str]:
    page = client.request(HISTORY_REQUEST, {"view": "entries"})
    return [entry["kind"] for entry in page.json["messages"]]


def the_model_event(client: RawClient) -> Frame:
    while (event := client.event(SESSION_EVENT)).json["event"] != "model":
        pass
    return event


def test_every_message_about_a_turn_names_the_model_that_answers(client: RawClient) -> None:
    assert answer_to(client) == all_say(FIRST)
    client.request(MODEL_SWITCH, {"model": SECOND})
    assert answer_to(client) == all_say(SECOND)
    page = client.request(HISTORY_REQUEST).json
    answers = [message["model"] for message in page["messages"] if message["role"] == "assistant"]
    assert answers == [FIRST, SECOND]


def test_the_model_of_a_prompt_is_for_that_prompt_alone(client: RawClient) -> None:
    assert answer_to(client, model=SECOND) == all_say(SECOND)
    assert current(client) == FIRST
    assert answer_to(client) == all_say(FIRST)


def test_a_new_conversation_names_its_model(client: RawClient) -> None:
    client.request(MODEL_SWITCH, {"model": SECOND})
    answer_to(client)
    assert client.request(SESSION_NEW).json["model"] == FIRST
    assert answer_to(client) == all_say(FIRST)
    made = client.request(SESSION_NEW, {"model": SECOND}).json
    assert made["model"] == SECOND
    deleted = client.request(SESSION_DELETE, {"session_id": made["session_id"]}).json
    assert deleted["model"] == FIRST == current(client)


def test_a_model_switch_is_an_event_for_other_clients_at_once(
    client: RawClient, connect: Connect
) -> None:
    answer_to(client)
    session_id = next(iter(listed(client)))
    other = connect()
    other.hello()
    assert other.request(SESSION_SWITCH, {"session_id": session_id}).json["model"] == FIRST
    client.request(MODEL_SWITCH, {"model": SECOND})
    assert the_model_event(other).json["model"] == SECOND
    assert current(other) == SECOND == listed(other)[session_id]
    assert answer_to(other) == all_say(SECOND)


@pytest.mark.slow
def test_a_model_switch_survives_a_restart_and_is_copied_by_forks(
    server: ServerProcess, client: RawClient, connect: Connect
) -> None:
    client.request(MODEL_SWITCH, {"model": SECOND})
    answer_to(client)
    session_id = next(iter(listed(client)))
    server.terminate()
    server.start()
    later = connect()
    assert later.hello()["model"] == FIRST
    assert listed(later) == {session_id: SECOND}
    assert later.request(ATTACH, {"session_id": session_id}).json["model"] == SECOND
    fork = later.request(SESSION_FORK).json["session_id"]
    assert later.request(SESSION_SWITCH, {"session_id": fork}).json["model"] == SECOND
    assert answer_to(later) == all_say(SECOND)


def test_a_model_switch_before_the_first_prompt_is_stored_with_it(connect: Connect) -> None:
    client = connect()
    session_id = client.hello()["session_id"]
    client.request(MODEL_SWITCH, {"model": SECOND})
    assert listed(client) == {}, "who only looks at models leaves no conversation behind"
    client.sock.close()
    again = connect()
    again.hello()
    assert again.request(ATTACH, {"session_id": session_id}).json["model"] == SECOND
    assert answer_to(again) == all_say(SECOND)
    assert kinds(again) == ["model_switched", "model_input", "model_output"]


def test_a_switch_to_the_same_model_writes_no_entry(client: RawClient) -> None:
    answer_to(client)
    for _ in range(3):
        client.request(MODEL_SWITCH, {"model": SECOND})
    assert kinds(client).count("model_switched") == 1


@pytest.mark.slow
def test_a_fallback_is_named_as_the_answering_model_and_the_chosen_model_stays(
    start_server: Callable[..., ServerProcess],
) -> None:
    url = "http://127.0.0.1:9/v1"
    gone = {"id": "gone", "type": "openai", "base_url": url, "models": ["m"]}
    server = start_server(providers=[*ECHOES, gone], default_model="gone/m", fallback=[SECOND])
    with RawClient(server.port) as client:
        client.hello()
        named = answer_to(client)
        assert (named["started"], named["entry"], named["finished"]) == ("gone/m", SECOND, SECOND)
        assert current(client) == "gone/m"


# The chat and the command line


async def test_the_chat_shows_the_model_after_new_switch_and_fork(url: str) -> None:
    async with chat_with(url) as face:
        session = face.session
        await run_command(face, f"/model {SECOND}")
        await face.says("hello")
        session_id = session.client.session_id
        assert session.model == SECOND
        await run_command(face, "/new")
        assert session.model == SECOND, "a new conversation keeps the model"
        await run_command(face, f"/model {FIRST}")
        await face.says("hello")
        newest = await session.client.history(1, roles=("assistant",))
        assert newest.messages[-1]["model"] == FIRST
        await run_command(face, f"/switch {session_id}")
        assert session.model == SECOND
        await run_command(face, "/fork")
        assert session.model == SECOND


async def test_the_chat_shows_a_model_switch_of_another_client(url: str) -> None:
    async with chat_with(url) as face, chat_with(url) as other:
        await face.says("hello")
        await run_command(other, f"/switch {face.session.client.session_id}")
        await run_command(face, f"/model {SECOND}")
        await other.until(lambda: other.session.model == SECOND)
        await run_command(face, "/delete")
        await other.until(lambda: other.session.model == FIRST)


def test_the_model_option_of_ask_switches_the_model_of_the_conversation(
    url: str, tmp_path: Path
) -> None:
    def ask(*arguments: str) -> dict[str, str]:
        done = run_nplt("ask", "hello", "--json", *arguments, home=tmp_path, server=url)
        assert done.returncode == 0, done.stderr
        answer: dict[str, str] = json.loads(done.stdout)
        return answer

    first = ask()
    session_id = first["session_id"]
    assert first["model"] == FIRST
    assert ask("-s", session_id, "-m", SECOND)["model"] == SECOND
    assert ask("-s", session_id)["model"] == SECOND
    fresh = ask("-m", SECOND)
    assert ask("-s", fresh["session_id"])["model"] == SECOND
    briefed = ask("-m", SECOND, "--system", "Be brief.")
    assert ask("-s", briefed["session_id"])["model"] == SECOND


def test_the_model_option_of_chat_switches_the_model_of_the_conversation(
    url: str, tmp_path: Path
) -> None:
    talked = run_nplt("chat", url, "--model", SECOND, home=tmp_path, stdin="hello\n")
    assert talked.returncode == 0, talked.stderr
    (row,) = json.loads(run_nplt("sessions", "--json", home=tmp_path, server=url).stdout)
    assert row["model"] == SECOND
    asked = run_nplt("ask", "-s", row["session_id"], "--json", "x", home=tmp_path, server=url)
    assert json.loads(asked.stdout)["model"] == SECOND


def test_an_unknown_model_is_refused_before_any_call(url: str, tmp_path: Path) -> None:
    refused = run_nplt("chat", url, "--model", "nobody", home=tmp_path, stdin="hello\n")
    assert refused.returncode != 0
    assert "no model 'nobody'" in refused.stderr
    assert json.loads(run_nplt("sessions", "--json", home=tmp_path, server=url).stdout) == []
