"""The slash commands: one table for every chat, and what each one does."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from tests.client.chat_face import RecordingFace, chat_with
from tests.support.server_thread import serving

from nplt_client.chat.changes import PromptShown, changes_from_history
from nplt_client.chat.commands import (
    COMMANDS,
    parse_command,
    run_command,
    take_line,
)
from nplt_client.chat.display import remember_theme, remembered_theme
from nplt_client.chat.prompt_history import PromptHistory, parse_prompt
from nplt_client.errors import ConfigurationError, LimitExceeded, RequestRefused
from nplt_client.render.reports import history_text
from nplt_protocol.json_text import JsonValue

DOCUMENT = (Path(__file__).parents[2] / "docs" / "chat.md").read_text(encoding="utf-8")


def test_the_document_lists_all_slash_commands() -> None:
    rows = re.findall(r"^\| `(/[^`]+)` \| (.+) \|$", DOCUMENT, re.MULTILINE)
    assert rows == [
        (f"/{name} {command.argument}".rstrip().replace("|", "\\|"), command.help)
        for name, command in COMMANDS.items()
    ]


def test_a_line_is_a_prompt_a_command_or_a_mistake() -> None:
    assert [parse_prompt(line) for line in ("hello", "//bin/sh", "/help")] == [
        "hello",
        "/bin/sh",
        None,
    ]
    assert parse_command("/RENAME  my notes ") == ("rename", "my notes")
    with pytest.raises(RequestRefused, match="Did you mean /sessions"):
        parse_command("/sesions")
    with pytest.raises(RequestRefused, match="/rename needs NAME"):
        parse_command("/rename")


@pytest.mark.parametrize("name", [name for name, one in COMMANDS.items() if not one.argument])
def test_a_command_without_arguments_refuses_an_argument(name: str) -> None:
    assert parse_command(f"/{name}  ") == (name, "")
    with pytest.raises(RequestRefused, match="takes nothing"):
        parse_command(f"/{name} 2")


def test_the_last_theme_is_remembered(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "theme"
    assert remembered_theme(file) == "dark"
    remember_theme(file, "light")
    assert remembered_theme(file) == "light"
    file.write_text("no such theme")
    assert remembered_theme(file) == "dark"


async def do(face: RecordingFace, line: str) -> str:
    """The last it told then."""
    await run_command(face, line)
    return face.notices[-1] if face.notices else ""


async def messages(face: RecordingFace) -> list[str]:
    return [str(one["content"]) for one in (await face.session.client.history(50)).messages]


async def test_slash_commands_about_the_last_message(server: str) -> None:
    async with chat_with(server) as face:
        assert await do(face, "/undo") == "there is nothing to take back"
        with pytest.raises(RequestRefused, match="no message of yours"):
            await run_command(face, "/retry")
        await face.says("one")
        await face.says("two")
        await run_command(face, "/retry")
        await face.until(lambda: len(face.texts) == 3)
        await face.session.wait_for_turn_end(list(face.texts)[-1])
        assert await messages(face) == ["one", "one", "two", "two"]
        await run_command(face, "/edit")
        assert face.input == "two"
        await face.says("three")
        assert await messages(face) == ["one", "one", "three", "three"]
        assert await do(face, "/undo") == "taken back: three (/redo brings it back)"
        assert await messages(face) == ["one", "one"]
        assert await do(face, "/redo") == "brought back"
        assert await messages(face) == ["one", "one", "three", "three"]
        assert "nothing to bring back" in await do(face, "/redo")
        assert "taken back: one and 1 more" in await do(face, "/undo 2")
        assert await messages(face) == []
        await run_command(face, "/redo")
        assert "one and 1 more, which are all messages of yours" in await do(face, "/undo 99")
        for wrong in ("x", "0"):
            with pytest.raises(RequestRefused, match="takes a number"):
                await run_command(face, f"/undo {wrong}")
        assert not any("rolled back" in notices for notices in face.notices), (
            "we know that ourselves"
        )


async def test_edit_keeps_a_draft_that_was_typed_meanwhile(
    server: str,
) -> None:
    async with chat_with(server) as face:
        await face.says("one")
        editing = asyncio.create_task(run_command(face, "/edit"))
        face.input = "/qui"
        await editing
        assert face.input == "/qui"
        assert "you went on typing" in face.notices[-1]
        await face.says("two")
        assert await messages(face) == ["one", "one", "two", "two"], "nothing was replaced"


async def test_undo_and_retry_work_on_a_queued_message_alone(server: str) -> None:
    async with chat_with(server) as face:
        client = face.session.client
        first = await face.session.send("!slow 1 first", "m1")
        second = await face.session.send("second", "m2")
        for receipt in (first, second):
            await face.session.wait_for_turn_end(receipt.turn_id)
        stored = (await client.history(order="log")).messages
        assert [message["content"] for message in stored][1:3] == ["second", "first"]
        assert second.seq == first.seq + 1, "it was queued"
        await run_command(face, "/retry")
        await face.until(lambda: len(face.texts) == 3)
        await face.session.wait_for_turn_end(list(face.texts)[-1])
        assert await messages(face) == ["!slow 1 first", "first", "second", "second"]
        await run_command(face, "/undo")
        assert await messages(face) == ["!slow 1 first", "first"]


@pytest.mark.parametrize("command", ["undo", "retry", "edit"])
async def test_rollback_commands_are_refused_while_an_answer_runs(
    server: str, command: str
) -> None:
    async with chat_with(server) as face:
        running = await face.session.send("!slow 60 first", "m1")
        await face.until(lambda: face.session.turn_status.running == running.turn_id)
        says = rf"An answer is still running. Press Esc, then /{command}\."
        with pytest.raises(LimitExceeded, match=says):
            await run_command(face, f"/{command}")
        assert face.session.replace_from is None
        await face.session.client.cancel(running.turn_id)
        await face.session.wait_for_turn_end(running.turn_id)


async def test_an_attachment_stays_with_its_message_and_is_shown_everywhere(
    server: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("remember the milk")
    async with chat_with(server) as face:
        await run_command(face, f"/attach {notes}")
        await face.says("look at this")
        await run_command(face, "/retry")
        await face.until(lambda: len(face.texts) == 2)
        await face.session.wait_for_turn_end(list(face.texts)[-1])
        page = await face.session.client.history()
        assert page.messages[0]["attachments"][0]["filename"] == "notes.txt"  # type: ignore[index,call-overload]
        words = "file notes.txt (17 bytes, text/plain)"
        assert words in history_text(page)
        shown = changes_from_history(page.messages)[0][1][0]
        assert isinstance(shown, PromptShown)
        assert shown.shown == f"look at this\n[{words}]"
        for ending in ("md", "html"):
            await run_command(face, f"/export {tmp_path}/all.{ending}")
            assert words in (tmp_path / f"all.{ending}").read_text()


@pytest.mark.slow
async def test_export_chooses_the_format_by_the_file_extension(server: str, tmp_path: Path) -> None:
    async with chat_with(server) as face:
        await face.says("hello")
        long = "a long text " * 20_000 + "ends"
        await face.says(long)
        for ending in ("html", "json", "jsonl", "MD"):
            await run_command(face, f"/export {tmp_path}/all.{ending}")
        texts = {file.suffix: file.read_text() for file in tmp_path.iterdir()}
        assert texts[".html"].startswith("<!doctype html>")
        contents = [message["content"] for message in json.loads(texts[".json"])["messages"]]
        assert contents == ["hello", "hello", long, long]
        assert [json.loads(line)["content"] for line in texts[".jsonl"].splitlines()] == contents
        assert texts[".MD"].startswith("# hello\n\n## user")
        with pytest.raises(RequestRefused, match=r"end in \.md, \.json, \.jsonl, \.html"):
            await run_command(face, f"/export {tmp_path}/all.docx")


async def test_slash_commands_about_conversations(server: str, tmp_path: Path) -> None:
    async with chat_with(server) as face:
        client = face.session.client
        assert await do(face, "/new my notes") == "moved"
        assert (face.session.name, face.session.is_new) == ("my notes", True)
        await face.says("a note")
        notes = client.session_id
        assert "now called 'other notes'" in await do(face, "/rename other notes")
        await face.until(lambda: face.session.name == "other notes")
        assert await do(face, f"/export {tmp_path}/notes.md") == f"written to {tmp_path}/notes.md"
        exported = (tmp_path / "notes.md").read_text()
        assert exported.startswith("# other notes\n\n## user")
        with pytest.raises(ConfigurationError, match="File exists"):
            await run_command(face, f"/export {tmp_path}/notes.md")
        assert await do(face, "/fork") == ("this is a copy of 'other notes', which stays as it is")
        assert face.notices[-2] == "moved"
        assert client.session_id != notes
        assert [turn for turn, _ in face.shown]
        copy = client.session_id
        assert f"nplt undelete {copy[:8]}`" in await do(face, "/delete")
        assert face.notices[-2] == "moved", "what is told is in the conversation one sees then"
        assert not face.session.is_stored
        assert f"'other notes' is in the trash; `nplt undelete {notes[:8]}`" in await do(
            face, f"/delete {notes}"
        )
        assert client.session_id not in (notes, copy)


async def test_slash_commands_about_the_model_and_its_context(server: str) -> None:
    async with chat_with(server) as face:
        await run_command(face, "/new")
        assert await do(face, "/system") == "there is no system message"
        await run_command(face, "/system Be brief.")
        assert await do(face, "/system") == "Be brief."
        assert await do(face, "/model") == "the model is now offline/echo"
        await face.says("hello")
        assert "hello" in await do(face, "/context")
        assert "tokens" in await do(face, "/usage")
        assert "now" in await do(face, "/tools")
        assert "uptime" in await do(face, "/status")
        await run_command(face, "/clear")
        await face.until(lambda: face.notices[-1].startswith("cleared"))
        with pytest.raises(RequestRefused, match="No tool waits"):
            await run_command(face, "/allow always")
        with pytest.raises(RequestRefused, match="or always"):
            await run_command(face, "/deny perhaps")


async def test_a_model_that_was_chosen_is_kept_and_the_introduction_says_so(
    tmp_path: Path,
) -> None:
    providers: list[JsonValue] = [{"id": each, "type": "offline"} for each in ("offline", "local")]
    with serving(tmp_path, {"providers": providers}) as port:
        async with chat_with(f"nplt://127.0.0.1:{port}") as face:
            assert "because the server found no key" in face.first_contact
            await run_command(face, "/model local/echo")
            assert ", as you chose. /model lists 2 models." in face.first_contact
            assert "no key" not in face.first_contact
            await run_command(face, "/new")
            assert face.session.client.model == "local/echo"


async def test_slash_commands_of_the_chat_itself(server: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some notes")
    async with chat_with(server) as face:
        with pytest.raises(RequestRefused, match="no such answer"):
            await run_command(face, "/copy")
        await face.says("one")
        await face.says("```\nx = 1\n```")
        await run_command(face, "/copy 2")
        assert face.clipboard == "one"
        await run_command(face, "/copy code")
        assert face.clipboard == "x = 1\n"
        assert "10 bytes" in await do(face, f"/attach {tmp_path}/notes.txt")
        assert len(face.session.attachments) == 1
        assert await do(face, "/raw") == "answers as they are written"
        await run_command(face, "/theme")
        assert face.theme == "terminal"
        with pytest.raises(RequestRefused, match="no theme 'pink'"):
            await run_command(face, "/theme pink")
        assert await do(face, "/reconnect") == "already connected"
        assert "a key" in await do(face, "/help")
        for line in ("/sessions milk", "/search milk", "/history 3"):
            assert await do(face, line) == line[1:]
        with pytest.raises(RequestRefused, match="a number of messages"):
            await run_command(face, "/history many")
        await run_command(face, "/quit")
        assert face.has_left is False


async def test_open_and_later_chats_drop_redacted_prompts_from_their_stored_ones(
    server: str, tmp_path: Path
) -> None:
    here, elsewhere = (PromptHistory(tmp_path / name) for name in ("here", "elsewhere"))
    elsewhere.add("kept", "m-0")
    async with chat_with(server, prompts=here) as face:
        await take_line(face, "the password is hunter2hunter2")
        elsewhere.add("the password is hunter2hunter2", message_id_in(tmp_path / "here"))
        await face.until(lambda: len(face.texts) == 1 and face.session.turn_status.running is None)
        await take_line(face, "hello")
        await face.until(lambda: len(face.texts) == 2 and face.session.turn_status.running is None)
        done = await face.session.client.redact(1)
        await face.until(lambda: here.load() == ["hello"])
    assert [(one.seq, one.kind) for one in done.copies] == [(2, "model_output")]
    async with chat_with(server, prompts=elsewhere) as face:
        await face.until(lambda: elsewhere.load() == ["kept"])


def message_id_in(file: Path) -> str:
    return str(json.loads(file.read_text())["message_id"])


async def test_at_and_in_store_a_prompt_that_runs_later(server: str) -> None:
    async with chat_with(server) as face:
        assert (await do(face, "/in 1h wake up")).startswith("this runs at 20")
        assert (await do(face, "/at 23:59:59 sum up the day")).startswith("this runs at 20")
        assert await messages(face) == []
        row = await face.session.client.row(face.session.client.session_id)
        assert row.later == 2
        for line in ("/in soon wake up", "/at 25:00 wake up", "/in 5m"):
            with pytest.raises(RequestRefused):
                await run_command(face, line)


async def test_a_time_that_has_passed_sends_the_prompt_now(server: str) -> None:
    async with chat_with(server) as face:
        await run_command(face, "/at 2020-01-01 09:00 good morning")
        assert "this time has passed; it is sent now" in face.notices
