"""search, fork, redact, undelete, export, import: real processes, a real server."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import orjson
import pytest
from tests.client.nplt_process import run_nplt

import nplt_client
from nplt_client import RequestRefused


@pytest.fixture
async def conversation_id(server: str) -> str:
    """The id of a conversation with something in it."""
    async with nplt_client.connect(server) as client:
        await client.ask_text("tell me about zebrafinches")
        await client.ask_text("and \x1b[31mred ones")
        return client.session_id


async def test_search_shows_the_place_and_the_snippet(
    server: str, conversation_id: str, tmp_path: Path
) -> None:
    found = run_nplt("search", "zebrafinches", "--limit", "300", home=tmp_path, server=server)
    assert conversation_id[:8] in found.stdout
    assert "[1] user" in found.stdout
    assert "\x1b" not in found.stdout


async def test_an_export_can_be_imported(server: str, conversation_id: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = run_nplt(
        "export", conversation_id, "--format", "json", "-o", str(file), home=tmp_path, server=server
    )
    assert (done.returncode, done.stdout) == (0, "")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    files = (str(broken), str(tmp_path / "missing.json"), str(file))
    taken = run_nplt("import", *files, home=tmp_path, server=server)
    assert taken.returncode != 0, "two of them could not be taken in"
    assert "can't be imported" in taken.stderr
    assert "missing.json" in taken.stderr
    (new_id,) = taken.stdout.split()
    async with nplt_client.connect(server) as client:
        before = (await client.history(session_id=conversation_id)).messages
        after = (await client.history(session_id=new_id)).messages
        assert [each["content"] for each in after] == [each["content"] for each in before]


async def test_an_import_keeps_the_name_that_was_exported(server: str, tmp_path: Path) -> None:
    async with nplt_client.connect(server) as client:
        await client.new("Pears & quinces")
        await client.ask_text("what grows here?")
        old_id = client.session_id
    file = tmp_path / "pears.json"
    run_nplt("export", old_id, "--format", "json", "-o", str(file), home=tmp_path, server=server)
    new_id = run_nplt("import", str(file), home=tmp_path, server=server).stdout.strip()
    shown = run_nplt("history", new_id, home=tmp_path, server=server).stdout
    assert shown.startswith("Pears & quinces · ")


async def test_an_export_is_markdown_or_json_lines(
    server: str, conversation_id: str, tmp_path: Path
) -> None:
    shown = run_nplt("export", conversation_id[:12], home=tmp_path, server=server)
    assert "## user ·" in shown.stdout
    assert "zebrafinches" in shown.stdout
    lines = run_nplt("export", conversation_id, "--format", "jsonl", home=tmp_path, server=server)
    assert [orjson.loads(line)["seq"] for line in lines.stdout.splitlines()] == [1, 2, 3, 4]


async def test_an_export_has_the_format_of_the_file_extension(
    server: str, conversation_id: str, tmp_path: Path
) -> None:
    for name, begins in (("a.html", "<!doctype"), ("a.json", "{"), ("a.md", "#"), ("a", "#")):
        file = tmp_path / name
        done = run_nplt("export", conversation_id, "-o", str(file), home=tmp_path, server=server)
        assert done.returncode == 0
        assert file.read_text().startswith(begins)


async def test_fork_prints_its_id_and_undelete_restores_a_conversation(
    server: str, conversation_id: str, tmp_path: Path
) -> None:
    made = run_nplt(
        "fork", conversation_id, "--at", "2", "--name", "tail", home=tmp_path, server=server
    )
    forked = made.stdout.strip()
    async with nplt_client.connect(server) as client:
        await client.delete(forked)
        assert run_nplt("undelete", forked, home=tmp_path, server=server).returncode == 0
        page = await client.history(session_id=forked)
        assert (page.name, len(page.messages)) == ("tail", 2)


async def test_redact_needs_a_confirmation(
    server: str, conversation_id: str, tmp_path: Path
) -> None:
    refused = run_nplt("redact", conversation_id, "1", home=tmp_path, server=server)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert (
        run_nplt("redact", conversation_id, "1", "--yes", home=tmp_path, server=server).returncode
        == 0
    )
    async with nplt_client.connect(server) as client:
        page = await client.history(session_id=conversation_id)
        assert page.messages[0]["content"] == "[redacted]"


async def test_redact_lists_copies_and_erases_them_everywhere(server: str, tmp_path: Path) -> None:
    key = f"sk-{uuid4().hex}"
    async with nplt_client.connect(server) as client:
        await client.ask_text(f"use {key} for it", model="offline/echo")
        here = client.session_id
        copy = await client.fork(name="a copy")
        await client.new("another")
        await client.ask_text(f"or was it {key}?", model="offline/echo")
        other = client.session_id
    done = run_nplt("redact", here, "1", "--yes", home=tmp_path, server=server)
    assert done.returncode == 0
    assert "entry 1 of 'a copy' (a prompt)" in done.stderr
    assert "entry 3 of 'another' (an answer)" in done.stderr
    assert f"nplt redact {here} 2" in done.stderr
    assert "backups" in done.stderr
    done = run_nplt("redact", other, "2", "--yes", "--everywhere", home=tmp_path, server=server)
    assert "4 of 4 copies are erased" in done.stderr
    async with nplt_client.connect(server) as client:
        for session_id in (here, copy.session_id, other):
            assert key not in str((await client.history(session_id=session_id)).messages)


async def test_the_library_uploads_updates_forks_redacts_and_imports(server: str) -> None:
    async with nplt_client.connect(server) as client:
        here = client.session_id
        stored = await client.upload(b"\x00" * 2_000_000, filename="zeros")
        assert await client.file_get(stored.file_id) == b"\x00" * 2_000_000
        await client.ask_text("first")
        assert await client.ask_text("second", replace_from=2) == "second"
        row = await client.update(pinned=True, system="Be brief.")
        assert (row.pinned, row.message_count) == (True, 2)
        forked = await client.fork(name="aside")
        assert (await client.redact(1, forked.session_id)).seqs == (1,)
        done = await client.import_document({"messages": [{"role": "user", "content": "x"}]})
        assert done.messages == 1
        await client.delete(here)
        assert (await client.undelete(here)).session_id == here
        assert [hit async for hit in client.search("nowhere-to-be-found")] == []
        with pytest.raises(RequestRefused):
            await client.file_get("0" * 32)


@pytest.mark.slow
async def test_an_export_with_queued_prompts_is_imported_in_the_shown_order(
    server: str, tmp_path: Path
) -> None:
    async with nplt_client.connect(server) as client:
        async with client.ask("!slow 1 first"), client.ask("second") as queued:
            async for _ in queued:
                pass
        session_id = client.session_id
        shown = [each["content"] for each in (await client.history()).messages]
        assert shown == ["!slow 1 first", "first", "second", "second"]
    file = tmp_path / "out.json"
    arguments = ("export", session_id, "--format", "json", "-o", str(file))
    assert run_nplt(*arguments, home=tmp_path, server=server).returncode == 0
    taken = run_nplt("import", str(file), home=tmp_path, server=server)
    async with nplt_client.connect(server) as client:
        again = (await client.history(session_id=taken.stdout.strip())).messages
        assert [each["content"] for each in again] == shown


async def test_an_export_includes_queued_prompts(server: str, tmp_path: Path) -> None:
    async with (
        nplt_client.connect(server) as client,
        client.ask("!slow 60 first") as running,
        client.ask("second") as queued,
    ):
        arguments = ("export", client.session_id, "--format", "jsonl")
        done = run_nplt(*arguments, home=tmp_path, server=server)
        lines = [orjson.loads(line)["content"] for line in done.stdout.splitlines()]
        assert lines == ["!slow 60 first", "second"]
        await client.cancel(queued.receipt.turn_id)
        await client.cancel(running.receipt.turn_id)
