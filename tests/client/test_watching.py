"""Watching all conversations: the library, the commands, the chats, with a real server."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import orjson
import pytest
from tests.client.nplt_process import NPLT, private_environment, run_nplt
from tests.client.screen_stage import screen_text, until
from tests.support.server_process import ServerProcess

import nplt_client
from nplt_client import RequestRefused, SessionChanged, SessionRow, Watch, sync
from nplt_client.chat.chat_session import ChatSession
from nplt_client.tui.app import ChatApp
from nplt_protocol.messages import WATCHING

SECONDS_MAX = 60


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    settings: dict[str, object] = {
        "tools": {"now": "ask"},
        "approvals": {"wait_when_alone": True},
    }
    server = ServerProcess(tmp_path / "data", settings=settings).start()
    yield server
    if server.is_running:
        server.terminate()


@pytest.fixture
def url(own_server: ServerProcess) -> str:
    return f"nplt://127.0.0.1:{own_server.port}"


async def seen_by(watch: Watch, session_id: str, **wanted: object) -> SessionRow:
    """The first row of that conversation that has these values."""
    with anyio.fail_after(SECONDS_MAX):
        async for change in watch:
            row = change.row
            if row is None or row.session_id != session_id:
                continue
            if all(getattr(row, name) == value for name, value in wanted.items()):
                return row
    raise AssertionError("the watch ended")


# The library


async def test_watch_gives_the_rows_that_need_attention_and_then_the_changes(url: str) -> None:
    async with nplt_client.connect(url) as writer, nplt_client.connect(url) as client:
        await writer.ask_text("hello")
        unread = writer.session_id
        watch = client.watch()
        first = await anext(watch)
        assert (first.session_id, first.row.unread if first.row else 0) == (unread, 1)
        created = await writer.new("second")
        async with writer.ask("!slow 0.5 one two") as turn:
            await seen_by(watch, created.session_id, state="running")
            async for _ in turn:
                pass
        row = await seen_by(watch, created.session_id, state="idle", unread=1)
        mark = await writer.seen(row.head_seq)
        assert (mark.seen_seq, mark.unread) == (row.head_seq, 0)
        await seen_by(watch, created.session_id, unread=0)
        await writer.delete(created.session_id)
        with anyio.fail_after(SECONDS_MAX):
            while (change := await anext(watch)).row is not None:
                pass
        assert change == SessionChanged(session_id=created.session_id, what="deleted")
        await watch.aclose()


async def test_a_watch_survives_a_restart_and_reports_what_came_to_rest_meanwhile(
    own_server: ServerProcess, url: str
) -> None:
    patience = nplt_client.Patience(first_seconds=0.05, most_seconds=0.2)
    async with nplt_client.connect(url, reconnect=patience) as client:
        async with client.ask("!slow 30 one two"):
            pass
        await client.detach()
        running, watch = client.session_id, client.watch()
        await seen_by(watch, running, state="running")
        port = own_server.port
        await anyio.to_thread.run_sync(own_server.kill)
        restarted = ServerProcess(own_server.data_dir, "--port", str(port))
        await anyio.to_thread.run_sync(restarted.start)
        # The turn was interrupted by the kill, with the text that was shown by then.
        row = await seen_by(watch, running, state="failed")
        assert row.unread == (await client.row(running)).unread
        await watch.aclose()
    await anyio.to_thread.run_sync(restarted.terminate)


async def test_wait_returns_when_all_or_the_first_of_them_are_at_rest(url: str) -> None:
    async with nplt_client.connect(url) as client:
        async with client.ask("!slow 0.5 one two"):
            quick = client.session_id
        await client.new("slow")
        async with client.ask("!slow 30 one two") as slow:
            pass
        with anyio.fail_after(SECONDS_MAX):
            (row,) = await client.wait(quick, "slow", first=True)
            assert (row.session_id, row.state) == (quick, "idle")
            await slow.cancel()
            rows = await client.wait(quick, "slow")
        assert [row.state for row in rows] == ["idle", "idle"]
        with pytest.raises(RequestRefused):
            await client.wait("no such conversation")


def test_the_blocking_client_watches_and_waits(url: str) -> None:
    with sync.connect(url) as client:
        client.ask_text("hello")
        changes = client.watch()
        row = next(changes).row
        assert row is not None
        assert row.unread == 1
        assert client.wait(client.session_id)[0].state == "idle"
        client.seen(row.head_seq)
        assert any(change.row is not None and not change.row.unread for change in changes)
        changes.close()


# The commands


def rows_of(url: str, home: Path) -> dict[str, int]:
    listed = run_nplt("sessions", "--json", home=home, server=url)
    return {row["name"]: row["unread"] for row in orjson.loads(listed.stdout)}


def test_an_answer_that_ask_delivered_is_read_and_a_detached_one_is_not(
    url: str, tmp_path: Path
) -> None:
    assert run_nplt("ask", "delivered", home=tmp_path, server=url).returncode == 0
    detached = run_nplt("ask", "--detach", "left", home=tmp_path, server=url)
    session_id = detached.stdout.split()[0]
    waited = run_nplt("wait", session_id[:12], home=tmp_path, server=url)
    assert (waited.returncode, waited.stdout) == (0, f"{session_id} idle left\n")
    assert rows_of(url, tmp_path) == {"delivered": 0, "left": 1}
    listed = run_nplt("sessions", home=tmp_path, server=url).stdout
    assert "idle, 1 unread" in listed


def test_ps_lists_a_conversation_with_a_prompt_for_later(url: str, tmp_path: Path) -> None:
    run_nplt("ask", "-s", "tea", "--create", "--in", "1h", "drink it", home=tmp_path, server=url)
    table = run_nplt("ps", home=tmp_path, server=url).stdout
    assert "tea" in table
    assert "idle, due " in table


def test_ps_lists_what_is_not_at_rest(url: str, tmp_path: Path) -> None:
    nothing = run_nplt("ps", home=tmp_path, server=url)
    assert (nothing.stdout, nothing.returncode) == ("", 0)
    run_nplt("ask", "--detach", "!slow 30 one two", home=tmp_path, server=url)
    run_nplt("ask", "at rest", home=tmp_path, server=url)
    table = run_nplt("ps", home=tmp_path, server=url).stdout
    assert "running" in table
    assert "at rest" not in table
    (row,) = orjson.loads(run_nplt("ps", "--json", home=tmp_path, server=url).stdout)
    assert (row["state"], row["name"]) == ("running", "!slow 30 one two")


def test_wait_exits_6_after_a_failure_and_7_after_its_timeout(url: str, tmp_path: Path) -> None:
    run_nplt("ask", "--detach", "!fail", home=tmp_path, server=url)
    failed = run_nplt("wait", "@last", home=tmp_path, server=url)
    assert failed.returncode == 6
    assert "failed" in failed.stdout
    run_nplt("ask", "--detach", "!slow 60 one two", home=tmp_path, server=url)
    late = run_nplt("wait", "@last", "--timeout", "0.2", home=tmp_path, server=url)
    assert (late.returncode, late.stdout) == (7, "")
    assert run_nplt("wait", "nowhere", home=tmp_path, server=url).returncode == 2
    assert run_nplt("wait", home=tmp_path, server=url).returncode == 2


def test_approve_and_deny_decide_the_pending_tool_call(url: str, tmp_path: Path) -> None:
    def waits() -> str:
        asked = run_nplt("ask", "--detach", "!tool now {}", home=tmp_path, server=url)
        session_id = asked.stdout.split()[0]
        for _ in range(2000):
            rows = orjson.loads(run_nplt("ps", "--json", home=tmp_path, server=url).stdout)
            if [row["state"] for row in rows if row["session_id"] == session_id] == ["asking"]:
                return session_id
        raise AssertionError("it does not ask")

    settled = run_nplt("approve", "@last", home=tmp_path, server=url)
    assert settled.returncode == 2
    for command, result in (("approve", "success"), ("deny", "skipped")):
        session_id = waits()
        assert run_nplt(command, session_id, home=tmp_path, server=url).returncode == 0
        run_nplt("wait", session_id, home=tmp_path, server=url)
        page = run_nplt("history", session_id, "--json", home=tmp_path, server=url).stdout
        assert f'"status": "{result}"' in page, page
        again = run_nplt(command, session_id, home=tmp_path, server=url)
        assert (again.returncode, "asks for no approval" in again.stderr) == (2, True)


@contextmanager
def watching(url: str, home: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    environment = private_environment(home, NPLT_SERVER=url)
    process = subprocess.Popen(
        [*NPLT, "watch", *options], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS_MAX)


def test_watch_prints_a_line_of_json_for_each_change(url: str, tmp_path: Path) -> None:
    run_nplt("ask", "--detach", "first", home=tmp_path, server=url)
    run_nplt("wait", "@last", home=tmp_path, server=url)
    with watching(url, tmp_path, "--json") as process:
        assert process.stdout is not None
        first = orjson.loads(process.stdout.readline())
        assert (first["row"]["name"], first["row"]["unread"]) == ("first", 1)
        run_nplt("ask", "second", home=tmp_path, server=url)
        states: list[tuple[str, int]] = []
        while not states or states[-1] != ("idle", 0):
            change = orjson.loads(process.stdout.readline())
            assert change.keys() == {"session_id", "what", "row"}
            if change["row"]["name"] == "second":
                states.append((change["row"]["state"], change["row"]["unread"]))


def test_watch_runs_a_command_with_each_change_on_its_stdin(url: str, tmp_path: Path) -> None:
    run_nplt("ask", "--detach", "first", home=tmp_path, server=url)
    log = tmp_path / "log"
    with watching(url, tmp_path, "--exec", "sh", "-c", f"cat >> {log}; echo ran") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ran\n"
    assert orjson.loads(log.read_text().splitlines()[0])["row"]["name"] == "first"
    for bad in (("--exec",), ("sh",)):
        assert run_nplt("watch", *bad, home=tmp_path, server=url).returncode == 2


# The chats


@asynccontextmanager
async def chat_at(url: str, folder: Path) -> AsyncIterator[ChatApp]:
    async with nplt_client.connect(url, features=(WATCHING,)) as client:
        app = ChatApp(ChatSession(client), folder)
        async with app.run_test(size=(110, 30)) as pilot:
            app.pilot = pilot  # type: ignore[attr-defined]
            yield app


async def test_the_status_line_counts_other_conversations_and_ctrl_t_goes_to_the_next(
    url: str, tmp_path: Path
) -> None:
    async with nplt_client.connect(url) as other, chat_at(url, tmp_path) as app:
        pilot = app.pilot  # type: ignore[attr-defined]
        await until(pilot, lambda: "● online" in screen_text(app))
        assert "elsewhere" not in screen_text(app)
        await other.new("long")
        async with other.ask("!slow 60 one two"):
            await until(pilot, lambda: "elsewhere 1 running" in screen_text(app))
        await other.new("asks")
        async with other.ask("!tool now {}"):
            await until(pilot, lambda: "1 running · 1 asks" in screen_text(app))
        asking = other.session_id
        await other.new("answered")
        await other.ask_text("hello")
        await until(pilot, lambda: "1 running · 1 asks · 1 unread" in screen_text(app))
        await pilot.press("ctrl+t")
        await until(pilot, lambda: app.session.client.session_id == asking)
        await pilot.press("ctrl+l")
        await until(pilot, lambda: app.has_window and "1 unread" in screen_text(app))
        shown = screen_text(app)
        assert "asking here" in shown
        assert "running" in shown


@pytest.mark.parametrize(("key", "status"), [("ctrl+y", "success"), ("ctrl+d", "skipped")])
async def test_a_tool_call_of_another_conversation_is_decided_in_the_list(
    url: str, tmp_path: Path, key: str, status: str
) -> None:
    async with nplt_client.connect(url) as other, chat_at(url, tmp_path) as app:
        pilot = app.pilot  # type: ignore[attr-defined]
        await other.new("asks")
        async with other.ask("!tool now {}") as turn:
            await until(pilot, lambda: "elsewhere 1 asks" in screen_text(app))
            await pilot.press("ctrl+l")
            await until(pilot, lambda: "It asks to run now {}" in screen_text(app))
            await pilot.press(key)
            async for _ in turn:
                pass
        assert [each["status"] for each in turn.tool_calls] == [status]


async def test_what_a_chat_shows_to_its_end_is_read(url: str, tmp_path: Path) -> None:
    async with nplt_client.connect(url) as other, chat_at(url, tmp_path) as app:
        pilot, here = app.pilot, app.session.client  # type: ignore[attr-defined]
        watch = other.watch()
        await until(pilot, lambda: "● online" in screen_text(app))
        app.submit("hello")
        await seen_by(watch, here.session_id, state="idle", unread=0, message_count=2)

        await other.new("earlier")
        await other.ask_text("hello")
        await seen_by(watch, other.session_id, unread=1)
        app.submit("/switch earlier")
        await seen_by(watch, other.session_id, unread=0)

        app.app_focus = False
        await other.ask_text("and now")
        await seen_by(watch, other.session_id, unread=1)
        await until(pilot, lambda: screen_text(app).count("and now") > 1)
        assert (await other.row(other.session_id)).unread == 1
        app.app_focus = True
        app.on_app_focus(None)  # type: ignore[arg-type]
        await seen_by(watch, other.session_id, unread=0)
        await watch.aclose()


async def test_the_chat_alerts_when_another_conversation_ends_or_asks(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts: list[str] = []
    async with nplt_client.connect(url) as other, chat_at(url, tmp_path) as app:
        pilot = app.pilot  # type: ignore[attr-defined]
        monkeypatch.setattr(app, "alert", alerts.append)
        await other.new("elsewhere")
        async with other.ask("!slow 0.5 one two") as turn:
            await until(pilot, lambda: "1 running" in screen_text(app))
            async for _ in turn:
                pass
        await until(pilot, lambda: alerts == ["elsewhere is done"])
        async with other.ask("!tool now {}"):
            await until(pilot, lambda: alerts[1:] == ["elsewhere waits for your decision"])
