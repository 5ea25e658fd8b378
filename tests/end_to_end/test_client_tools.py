"""Tools that the client runs: a call ends the turn, and a later prompt brings its result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.raw_client import (
    CLEAR_REQUEST,
    ENTRY,
    ERROR,
    HISTORY_REQUEST,
    PROMPT,
    REDACT,
    ROLLBACK,
    SESSION_FORK,
    SESSION_LIST,
    SESSION_SWITCH,
    STATUS,
    TURN_FINISHED,
    RawClient,
)
from tests.support.scripted_vendor import (
    Reply,
    ScriptedVendor,
    chat,
    chat_calls,
    message,
    vendor,
)
from tests.support.server_process import ServerProcess
from tests.support.server_thread import serving

from nplt_protocol.messages import EntryAdded
from nplt_protocol.resume import TurnProgress

Json = dict[str, Any]
READ: Json = {
    "name": "read_file",
    "description": "Reads a file of the user's machine.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
}
CALL = chat_calls(("call_a", "read_file", '{"path":"a.txt"}'))


@contextmanager
def talking(
    tmp_path: Path, *replies: Reply | Callable[[Json], Reply], **more: object
) -> Iterator[tuple[RawClient, Any]]:
    with (
        vendor(*replies) as server,
        serving(tmp_path / "data", {"providers": [server.provider()], **more}) as port,
        RawClient(port) as client,
    ):
        client.hello()
        yield client, server


def play(client: RawClient, prompt: Json) -> Json:
    """Sends the prompt and returns its TURN_FINISHED."""
    receipt = client.request(PROMPT, prompt)
    assert receipt.type == PROMPT, receipt.json
    while True:
        finished = client.event(TURN_FINISHED).json
        if finished["turn_id"] == receipt.json["turn_id"]:
            return dict(finished)


def messages(client: RawClient, **more: object) -> list[Json]:
    return list(client.request(HISTORY_REQUEST, {"limit": 100, **more}).json["messages"])


def calls_in(client: RawClient) -> list[Json]:
    return [call for one in messages(client) for call in one["tool_calls"]]


def shown(server: ScriptedVendor, number: int = -1) -> list[tuple[str, Any]]:
    """The messages of a request without the system message, as role and content."""
    request = server.requests[number]["messages"]
    return [(one["role"], one.get("content")) for one in request if one["role"] != "system"]


def result_for(client: RawClient, text: str) -> Json:
    waiting = [call for call in calls_in(client) if call["status"] == "pending"]
    return {"tool_call_id": waiting[0]["tool_call_id"], "result": text}


def test_a_call_of_a_client_tool_ends_the_turn_and_the_next_prompt_brings_its_result(
    tmp_path: Path,
) -> None:
    with talking(tmp_path, CALL, chat("It says hello.")) as (client, server):
        finished = play(client, {"text": "What is in a.txt?", "tools": [READ]})
        assert (finished["state"], finished["stop_reason"]) == ("completed", "tool_calls")
        assert client.request(STATUS).json["turns"].get("running", 0) == 0
        (call,) = calls_in(client)
        assert (call["status"], call["by_client"]) == ("pending", True)
        assert call["arguments"] == {"path": "a.txt"}
        offered = [tool["function"]["name"] for tool in server.requests[0]["tools"]]
        assert {"read_file", "now"} <= {*offered}

        brought = result_for(client, "hello")
        finished = play(client, {"text": "", "results": [brought], "tools": [READ]})
        assert (finished["state"], finished["stop_reason"]) == ("completed", "end")
        assert shown(server) == [
            ("user", "What is in a.txt?"),
            ("assistant", None),
            ("tool", "hello"),
        ]
        assert [call["result"] for call in calls_in(client)] == ["hello"]
        roles = [(one["role"], one["content"]) for one in messages(client)]
        assert roles == [
            ("user", "What is in a.txt?"),
            ("assistant", ""),
            ("user", ""),
            ("assistant", "It says hello."),
        ]
        kinds = [one["kind"] for one in messages(client, view="entries") if one.get("turn_id")]
        assert kinds == [
            *("model_input", "model_output", "tool_results"),
            *("model_input", "model_output"),
        ]


def test_tools_that_come_with_each_prompt_are_stored_once(tmp_path: Path) -> None:
    other = {**READ, "name": "write_file"}
    with talking(tmp_path, chat("ok")) as (client, server):
        for tools in ([READ], [READ], [READ, other], [READ, other], []):
            play(client, {"text": "hi", "tools": tools, "offer": "client"})
        entries = messages(client, view="entries")
        prompts = [each for each in entries if each["kind"] == "model_input"]
        stored = [(len(each.get("tools", ())), each.get("tools_seq")) for each in prompts]
        first, third = prompts[0]["seq"], prompts[2]["seq"]
        assert stored == [(1, None), (0, first), (2, None), (0, third), (0, None)]
        assert [len(each.get("tools", ())) for each in server.requests] == [1, 1, 2, 2, 0]
        client.request(REDACT, {"seq": third})
        play(client, {"text": "hi", "tools": [READ, other], "offer": "client"})
        assert len(server.requests[-1]["tools"]) == 2


def test_a_prompt_that_waited_through_a_restart_has_its_tools(tmp_path: Path) -> None:
    with vendor(chat("ok")) as server:
        settings: dict[str, object] = {
            "providers": [server.provider(), {"id": "offline", "type": "offline"}]
        }
        running = ServerProcess(tmp_path / "data", settings=settings).start()
        with RawClient(running.port) as client:
            session_id = client.hello()["session_id"]
            offered = {"tools": [READ], "model": "box/m"}
            play(client, {"text": "hi", **offered})
            client.request(PROMPT, {"text": "!slow 600", "model": "offline/echo"})
            waiting = client.request(PROMPT, {"text": "Look.", **offered}).json
            assert waiting["state"] == "waiting"
        running.kill()
        running.start()
        with RawClient(running.port) as client:
            client.hello()
            client.request(SESSION_SWITCH, {"session_id": session_id})
            until = [*(one["role"] for one in messages(client))]
            while until[-1] != "assistant" or until.count("assistant") < 2:
                client.event(TURN_FINISHED, ENTRY)
                until = [*(one["role"] for one in messages(client))]
        running.terminate()
        offered_names = [
            [tool["function"]["name"] for tool in request["tools"]] for request in server.requests
        ]
        assert all("read_file" in names for names in offered_names)
        assert len(offered_names) == 2


def test_results_may_come_with_a_text(tmp_path: Path) -> None:
    with talking(tmp_path, CALL, chat("ok")) as (client, server):
        play(client, {"text": "Look.", "tools": [READ]})
        play(client, {"text": "And hurry.", "results": [result_for(client, "hello")]})
        assert shown(server)[-2:] == [("tool", "hello"), ("user", "And hurry.")]


@pytest.mark.parametrize("replies", [(CALL, chat("ok")), (CALL, CALL, chat("ok"))])
def test_any_other_prompt_is_preceded_by_skipped_results(
    tmp_path: Path, replies: tuple[Reply, ...]
) -> None:
    with talking(tmp_path, *replies) as (client, server):
        for _ in replies[1:]:
            play(client, {"text": "Look.", "tools": [READ]})
        play(client, {"text": "Never mind."})
        assert {call["status"] for call in calls_in(client)} == {"skipped"}
        results = [content for role, content in shown(server) if role == "tool"]
        assert len(results) == len(replies) - 1
        assert all("not run" in str(content) for content in results)


def test_a_prompt_that_waited_behind_the_call_is_preceded_by_skipped_results(
    tmp_path: Path,
) -> None:
    go_on = threading.Event()

    def called_late(_: Json) -> Reply:
        assert go_on.wait(30)
        return CALL

    with talking(tmp_path, called_late, chat("ok")) as (client, server):
        client.request(PROMPT, {"text": "Look.", "tools": [READ]})
        waiting = client.request(PROMPT, {"text": "Then this."}).json
        assert waiting["state"] == "waiting"
        go_on.set()
        finished = {client.event(TURN_FINISHED).json["stop_reason"] for _ in range(2)}
        assert finished == {"tool_calls", "end"}
        tool = [content for role, content in shown(server) if role == "tool"]
        assert len(tool) == 1
        assert "not run" in str(tool[0])


def test_another_vendor_accepts_the_history_with_results_of_a_client(tmp_path: Path) -> None:
    with (
        vendor(CALL) as first,
        vendor(message("It says hello.")) as second,
        serving(tmp_path / "data", {"providers": [first.provider(), second.claude()]}) as port,
        RawClient(port) as client,
    ):
        client.hello()
        play(client, {"text": "Look.", "tools": [READ], "model": "box/m"})
        brought = result_for(client, "hello")
        play(client, {"text": "", "results": [brought], "tools": [READ], "model": "claude/m"})
        asked = second.requests[0]["messages"]
        assert [one["role"] for one in asked] == ["user", "assistant", "user"]
        used, result = asked[1]["content"][-1], asked[2]["content"][0]
        assert (used["type"], result["type"]) == ("tool_use", "tool_result")
        assert used["id"] == result["tool_use_id"]


def test_the_call_waits_for_its_client_across_kills_and_clean_restarts(tmp_path: Path) -> None:
    with vendor(CALL, chat("It says hello.")) as server:
        settings: dict[str, object] = {"providers": [server.provider()]}
        running = ServerProcess(tmp_path / "data", settings=settings).start()
        with RawClient(running.port) as client:
            session_id = client.hello()["session_id"]
            play(client, {"text": "Look.", "tools": [READ]})
        running.kill()
        running.start()
        assert running.terminate() == 0
        running.start()
        with RawClient(running.port) as client:
            client.hello()
            client.request(SESSION_SWITCH, {"session_id": session_id})
            finished = play(client, {"text": "", "results": [result_for(client, "hello")]})
            assert finished["state"] == "completed"
            assert shown(server)[-1] == ("tool", "hello")
        running.terminate()


@pytest.mark.parametrize("calls", [1, 2])
def test_the_library_knows_that_the_turn_is_over_when_it_comes_back(
    tmp_path: Path, calls: int
) -> None:
    """TURN_FINISHED is derived from the entry that ended the turn."""
    both = (("call_a", "read_file", "{}"), ("call_b", "now", "{}"))[:calls]
    with talking(tmp_path, chat_calls(*both)) as (client, _):
        play(client, {"text": "Look.", "tools": [READ]})
        session_id = client.request(HISTORY_REQUEST, {}).json["session_id"]
        turn = TurnProgress()
        entries = client.request(HISTORY_REQUEST, {"view": "entries", "limit": 100}).json
        for entry in entries["messages"]:
            if entry.get("turn_id"):
                turn.apply(EntryAdded(session_id=session_id, turn_id=entry["turn_id"], entry=entry))
        assert turn.end is not None
        assert (turn.end.state, turn.end.stop_reason) == ("completed", "tool_calls")


def test_a_fork_at_the_call_takes_its_own_result(tmp_path: Path) -> None:
    with talking(tmp_path, CALL, chat("ok")) as (client, server):
        finished = play(client, {"text": "Look.", "tools": [READ]})
        fork = client.request(SESSION_FORK, {"at_seq": finished["seq"]}).json["session_id"]
        brought = result_for(client, "of the original")
        play(client, {"text": "", "results": [brought]})
        assert shown(server)[-1] == ("tool", "of the original")
        client.request(SESSION_SWITCH, {"session_id": fork})
        play(client, {"text": "", "results": [{**brought, "result": "of the fork"}]})
        assert shown(server)[-1] == ("tool", "of the fork")


def test_after_a_rollback_of_the_result_the_call_waits_again(tmp_path: Path) -> None:
    with talking(tmp_path, CALL, chat("ok")) as (client, server):
        finished = play(client, {"text": "Look.", "tools": [READ]})
        brought = result_for(client, "one")
        play(client, {"text": "", "results": [brought]})
        client.request(ROLLBACK, {"to_seq": finished["seq"]})
        play(client, {"text": "", "results": [{**brought, "result": "two"}]})
        assert shown(server)[-1] == ("tool", "two")


def test_results_for_calls_that_do_not_wait_are_a_conflict(tmp_path: Path) -> None:
    with talking(tmp_path, CALL, chat("ok")) as (client, _):
        brought = {"tool_call_id": "call_x", "result": "hello"}
        for _ in range(2):
            refused = client.request(PROMPT, {"text": "", "results": [brought]})
            assert (refused.type, refused.json["code"]) == (ERROR, "conflict")
            assert refused.json["field"] == "results"
            play(client, {"text": "Look.", "tools": [READ]})
        right = result_for(client, "hello") if calls_in(client)[-1]["status"] == "pending" else None
        if right is not None:
            client.request(CLEAR_REQUEST)
            refused = client.request(PROMPT, {"text": "", "results": [right]})
            assert refused.json["code"] == "conflict"


def test_a_prompt_with_results_that_is_sent_again_runs_once(tmp_path: Path) -> None:
    with talking(tmp_path, CALL, chat("ok")) as (client, server):
        play(client, {"text": "Look.", "tools": [READ]})
        prompt = {"text": "", "results": [result_for(client, "hello")], "message_id": "m2"}
        play(client, prompt)
        assert client.request(PROMPT, prompt).json["duplicate"] is True
        assert len(server.requests) == 2


def test_a_call_of_which_the_client_brings_no_result_was_not_run(tmp_path: Path) -> None:
    both = chat_calls(("call_a", "read_file", "{}"), ("call_b", "read_file", "{}"))
    with talking(tmp_path, both, chat("ok")) as (client, server):
        play(client, {"text": "Look.", "tools": [READ]})
        second = calls_in(client)[1]["tool_call_id"]
        play(
            client,
            {"text": "", "results": [{"tool_call_id": second, "result": "no", "status": "failed"}]},
        )
        assert [call["status"] for call in calls_in(client)] == ["skipped", "failed"]
        assert [role for role, _ in shown(server)] == ["user", "assistant", "tool", "tool"]


def test_of_mixed_calls_the_server_runs_its_own_and_leaves_the_others_to_the_client(
    tmp_path: Path,
) -> None:
    both = chat_calls(("call_a", "read_file", "{}"), ("call_b", "now", "{}"))
    with talking(tmp_path, both, chat("ok")) as (client, server):
        finished = play(client, {"text": "Look.", "tools": [READ]})
        assert finished["stop_reason"] == "tool_calls"
        assert [call["status"] for call in calls_in(client)] == ["pending", "success"]
        play(client, {"text": "", "results": [result_for(client, "hello")]})
        first, second = [content for role, content in shown(server) if role == "tool"]
        assert first == "hello"
        assert second == calls_in(client)[1]["result"] != ""


@pytest.mark.parametrize(
    ("offer", "has_client_tool", "has_server_tools"),
    [("client", True, False), ("server", False, True), ("both", True, True), (None, True, True)],
)
def test_the_prompt_says_whose_tools_are_offered(
    tmp_path: Path, offer: str | None, has_client_tool: bool, has_server_tools: bool
) -> None:
    with talking(tmp_path, chat("ok")) as (client, server):
        play(client, {"text": "hi", "tools": [READ], "offer": offer})
        names = [tool["function"]["name"] for tool in server.requests[0].get("tools", ())]
        assert ("read_file" in names, "now" in names) == (has_client_tool, has_server_tools)


def test_a_client_tool_takes_the_place_of_the_servers_tool_of_that_name(tmp_path: Path) -> None:
    with talking(tmp_path, chat_calls(("c", "now", "{}"))) as (client, server):
        play(client, {"text": "hi", "tools": [{"name": "now", "description": "mine"}]})
        tools = [tool["function"] for tool in server.requests[0]["tools"]]
        assert [one["description"] for one in tools if one["name"] == "now"] == ["mine"]
        assert [call["by_client"] for call in calls_in(client)] == [True]


def test_a_client_tool_result_over_the_size_limit_is_stored_whole_as_a_blob(tmp_path: Path) -> None:
    limits = {"limits": {"tool_result_bytes_max": 1024}}
    with talking(tmp_path, CALL, chat("ok"), **limits) as (client, server):
        play(client, {"text": "Look.", "tools": [READ]})
        play(client, {"text": "", "results": [result_for(client, "x" * 5_000)]})
        (call,) = calls_in(client)
        assert (len(call["result"]), call["blob"]["size"]) == (1024, 5_000)
        assert "3,976 bytes more" in str(shown(server)[-1][1])


def test_plain_clients_read_and_continue_a_conversation_that_waits_for_a_client(
    tmp_path: Path,
) -> None:
    sessions = {"sessions": {"create": True, "default": "shared"}}
    with talking(tmp_path, CALL, chat("ok"), **sessions) as (client, server):
        client.request(SESSION_SWITCH, {"session_id": "shared", "create": True})
        play(client, {"text": "Look.", "tools": [READ]})
        (row,) = client.request(SESSION_LIST).json["sessions"]
        assert (row["state"], row["door"]) == ("idle", "nplt")
        with RawClient(client.sock.getpeername()[1]) as plain:
            assert plain.greeting()
            assert plain.chat("Never mind.")
        assert [call["status"] for call in calls_in(client)] == ["skipped"]
        assert shown(server)[-1] == ("user", "Never mind.")
        (row,) = client.request(SESSION_LIST).json["sessions"]
        assert row["door"] == "plain"


def test_a_redacted_prompt_loses_the_tools_that_came_with_it(tmp_path: Path) -> None:
    with talking(tmp_path, CALL) as (client, _):
        play(client, {"text": "Look.", "tools": [READ]})
        prompt = next(e for e in messages(client, view="entries") if e["kind"] == "model_input")
        assert prompt["tools"][0]["name"] == "read_file"
        client.request(REDACT, {"seq": prompt["seq"]})
        entries = messages(client, view="entries")
        prompt = next(e for e in entries if e["kind"] == "model_input")
        assert "tools" not in prompt
        assert b"user's machine" not in b"".join(
            path.read_bytes() for path in tmp_path.rglob("session_*.json")
        )


@pytest.mark.parametrize(
    ("prompt", "code", "field"),
    [
        ({"text": "hi", "tools": [READ, READ]}, "malformed", "tools"),
        ({"text": "hi", "tools": [{"name": ""}]}, "malformed", "tools.name"),
        ({"text": "hi", "tools": [{**READ, "name": f"t{n}"} for n in range(129)]}, "too_large", ""),
        ({"text": "hi", "tools": [{**READ, "description": "x" * 300_000}]}, "too_large", "tools"),
        ({"text": "hi", "offer": "all"}, "malformed", "offer"),
        ({"text": " "}, "malformed", "text"),
        (
            {"text": "", "results": [{"tool_call_id": "c", "result": "r"}], "replace_from": 1},
            "malformed",
            "results",
        ),
    ],
)
def test_bad_tools_and_results_are_refused(
    tmp_path: Path, prompt: Json, code: str, field: str
) -> None:
    with talking(tmp_path, chat("ok")) as (client, _):
        refused = client.request(PROMPT, prompt)
        assert (refused.type, refused.json["code"]) == (ERROR, code)
        assert refused.json["field"].startswith(field)


def test_the_entry_of_a_prompt_says_which_client_sent_it(tmp_path: Path) -> None:
    with talking(tmp_path, chat("ok")) as (client, _):
        client.request(PROMPT, {"text": "hi", "door": "http", "client": "liar"})
        entry = client.event(ENTRY).json["entry"]
        assert entry["door"] == "nplt"
        assert entry.get("client") != "liar"
