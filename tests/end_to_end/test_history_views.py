"""History, role, view and detail, from the library, the chat and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.client.chat_face import chat_with
from tests.client.nplt_process import run_nplt
from tests.conftest import Connect
from tests.support.raw_client import CANCEL, HISTORY_REQUEST, PROMPT, TURN_FINISHED
from tests.support.server_process import ServerProcess

import nplt_client
from nplt_client.chat.commands import run_command
from nplt_protocol.messages import HistoryPage

APPROVAL_REQUEST = 0x27
FIRST, SECOND = "first/echo", "second/echo"
LONG = "One sentence of a long text. " * 200


@pytest.fixture
def url(start_server: Callable[..., ServerProcess]) -> str:
    server = start_server(
        providers=[
            {"id": name, "type": "offline", "words_per_second": 0} for name in ("first", "second")
        ],
        default_model=FIRST,
        roles={"planner": SECOND},
        histories=[
            {"id": "main"},
            {"id": "short", "backend": {"type": "memory"}, "system_message": "Be brief."},
        ],
    )
    return f"nplt://127.0.0.1:{server.port}"


def kinds(page: HistoryPage) -> list[object]:
    return [entry["kind"] for entry in page.messages]


async def test_the_library_reaches_histories_roles_views_and_details(url: str) -> None:
    async with nplt_client.connect(url) as client:
        await client.new(history="short")
        async with client.ask(LONG, role="planner") as turn:
            async for _ in turn:
                pass
        assert (turn.model, client.model) == (SECOND, FIRST)
        page = await client.history(view="entries")
        assert kinds(page) == ["system_instruction", "model_input", "model_output"]
        pages = [
            await client.history(1),
            await client.history(1, detail="summary"),
            await client.history(1, detail="gist"),
        ]
        whole, summary, gist = (len(str(page.messages[0]["content"])) for page in pages)
        assert whole > summary > gist > 0


async def test_a_fresh_conversation_goes_to_the_history_that_the_client_names(url: str) -> None:
    async with nplt_client.connect(url, history="short") as client:
        await client.ask_text("hello")
        assert kinds(await client.history(view="entries"))[0] == "system_instruction"


async def test_the_chat_shows_entries_by_their_kinds_and_switches_to_roles(url: str) -> None:
    async with chat_with(url) as face:
        await face.says("hello")
        await run_command(face, "/role planner")
        assert face.notices[-1] == f"the model is now {SECOND}, the planner"
        assert face.session.model == SECOND
        await run_command(face, "/history --entries")
        shown = face.notices[-1]
        assert "[1] model_input" in shown
        assert "[2] model_output" in shown
        assert "[3] model_switched" in shown
        assert f"model: {SECOND}" in shown
        await run_command(face, "/history 1 --entries")
        assert "[1] model_input" not in face.notices[-1]
        with pytest.raises(nplt_client.RequestRefused, match="no model plays the role 'cook'"):
            await run_command(face, "/role cook")
        with pytest.raises(nplt_client.RequestRefused, match="takes a number"):
            await run_command(face, "/history many")


@pytest.mark.slow
def test_the_commands_reach_histories_roles_views_and_details(url: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        done = run_nplt(*arguments, home=tmp_path, server=url)
        assert done.returncode == 0, done.stderr
        return done.stdout

    asked = json.loads(run("ask", LONG, "--json", "--role", "planner", "--history", "short"))
    session_id = asked["session_id"]
    assert asked["model"] == SECOND
    assert "[1] system_instruction" in run("history", session_id, "--entries")
    whole, gist = (run("history", session_id, "--detail", detail) for detail in ("live", "gist"))
    assert len(whole) > len(gist)
    assert f" · {FIRST}" in whole.splitlines()[0], "the header names what answers next"
    page = json.loads(run("history", session_id, "--entries", "--json"))
    assert [entry["kind"] for entry in page["messages"]][1:] == ["model_input", "model_output"]
    piped = run_nplt("chat", url, "--history", "short", home=tmp_path, stdin="hello\n")
    assert (piped.returncode, piped.stdout) == (0, "hello\n")
    newest = json.loads(run("sessions", "--json"))[0]["session_id"]
    assert "[1] system_instruction" in run("history", newest, "--entries")


def test_create_without_a_session_is_a_usage_error(url: str, tmp_path: Path) -> None:
    for arguments in (("ask", "hello", "--create"), ("chat", "--create")):
        refused = run_nplt(*arguments, home=tmp_path, server=url)
        assert refused.returncode == 2
        assert "--create needs a name" in refused.stderr
    for arguments in (("ask", "hello", "--create"), ("chat", "--create")):
        named = run_nplt(*arguments, home=tmp_path, server=f"{url}/mine", stdin="hello\n")
        assert named.returncode == 0, "the address names it"
    listed = run_nplt("sessions", "--json", home=tmp_path, server=url)
    assert [row["message_count"] for row in json.loads(listed.stdout)] == [4]


def test_a_cancel_during_an_approval_marks_the_tool_results_as_cancelled(
    start_server: Callable[..., ServerProcess], connect: Connect
) -> None:
    client = connect(start_server(tools={"now": "ask"}))
    client.hello()
    client.request(PROMPT, {"text": "!tool now {}"})
    client.event(APPROVAL_REQUEST)
    client.request(CANCEL)
    client.event(TURN_FINISHED)
    page = client.request(HISTORY_REQUEST, {"view": "entries"}).json
    (results,) = [entry for entry in page["messages"] if entry["kind"] == "tool_results"]
    assert results["execute_error"] == "cancelled"
    assert [call["status"] for call in results["tool_calls"]] == ["skipped"]
