"""Files of an older program, one JSON document each, are taken in and kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.storage.conversations import chat, counting_ids, file_bytes
from tests.storage.disk_fakes import WatchedDisk
from tests.storage.file_fakes import MemoryFiles, Trouble, WatchedFiles
from tests.storage.json_stores import open_store, row_of

from nplt_storage import (
    ConversationDamaged,
    ConversationHistory,
    FileSettings,
    PageQuery,
    SearchQuery,
    StorageUnavailable,
)
from nplt_storage.entries import (
    DebugEntry,
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    SystemInstructionEntry,
    ToolResultsEntry,
)
from nplt_storage.file_system import FileOperations, SystemDisk
from nplt_storage.files.conversation_file import JsonFile

PATH = Path("history/session_20251231_abc-def.json")

OLD: dict[str, Any] = {
    "session_id": "abc-def",
    "messages": [
        {
            "role": "user",
            "content": "帮我查看CPU使用率",
            "timestamp": "2025-12-31T10:00:00",
            "tool_calls": [],
            "metadata": {},
        },
        {
            "role": "assistant",
            "content": "让我查看一下系统资源使用情况",
            "timestamp": "2025-12-31T10:00:01",
            "tool_calls": [
                {
                    "tool_name": "sys_monitor",
                    "arguments": {"metric": "cpu"},
                    "result": "CPU 使用率: 3.0%",
                    "status": "success",
                    "duration": 0.5,
                    "timestamp": "2025-12-31T10:00:02",
                }
            ],
            "metadata": {},
        },
    ],
    "created_at": "2025-12-31T10:00:00",
    "updated_at": "2025-12-31T10:05:00",
}


def _open(data: bytes) -> tuple[ConversationHistory, MemoryFiles]:
    files = MemoryFiles()
    files.put(PATH, data)
    return ConversationHistory("abc-def", _load(_file(files))), files


def _file(files: FileOperations) -> JsonFile:
    return JsonFile(PATH, "abc-def", files=files, new_id=counting_ids())


def _load(file: JsonFile) -> list[Entry]:
    with file.reading() as entries:
        return list(entries.after(0))


def _with(messages: list[dict[str, Any]], **more: Any) -> bytes:
    return json.dumps({**OLD, "messages": messages, **more}).encode()


@pytest.mark.parametrize("indent", [None, 2])
def test_an_older_file_becomes_ours_and_the_original_is_kept(indent: int | None) -> None:
    data = json.dumps(OLD, ensure_ascii=False, indent=indent).encode()
    history, files = _open(data)
    assert [entry.kind for entry in history.entries] == [
        "model_input",
        "model_output",
        "tool_results",
        "fault",
    ]
    assert bytes(files.contents[PATH.with_name(PATH.name + ".orig")]) == data
    document = json.loads(files.contents[PATH])
    assert document["format"] == 1
    assert document["created_at"] == "2025-12-31T10:00:00.000000+00:00"
    assert history.entries[1].timestamp.isoformat() == "2025-12-31T10:00:01+00:00"


def test_its_tool_calls_are_joined_as_before() -> None:
    history, _ = _open(json.dumps(OLD).encode())
    (_, said) = history.recent(2)
    assert said.content == "让我查看一下系统资源使用情况"
    (tool_call,) = said.tool_calls
    assert tool_call.arguments == {"metric": "cpu"}
    assert (tool_call.result, tool_call.status) == ("CPU 使用率: 3.0%", "success")
    assert tool_call.duration == 0.5
    assert tool_call.timestamp.isoformat() == "2025-12-31T10:00:02+00:00"


def test_what_its_tools_were_given_is_kept_as_a_model_would_have_sent_it() -> None:
    history, _ = _open(json.dumps(OLD).encode())
    (asked,) = (
        call
        for entry in history.entries
        if isinstance(entry, ModelOutputEntry)
        for call in entry.tool_calls
    )
    assert json.loads(asked.raw_arguments) == {"metric": "cpu"}


def test_a_taken_in_file_is_opened_like_any_other() -> None:
    history, files = _open(json.dumps(OLD).encode())
    again = _load(_file(files))
    assert again == list(history.entries)
    assert len(files.contents) == 2


def test_no_old_prompt_waits_to_be_run_again() -> None:
    history, _ = _open(_with([{"role": "user", "content": "hello?"}]))
    assert history.unfinished_turns() == []
    assert isinstance(history.entries[-1], FaultEntry)
    turn_id = history.entries[0].turn_id
    assert turn_id is not None
    assert history.turn_state(turn_id) == "interrupted"


def test_every_kind_of_old_message_finds_its_place() -> None:
    history, _ = _open(
        _with(
            [
                {"role": "system", "content": "be brief"},
                {"role": "assistant", "content": "welcome"},
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "two"},
                {"role": "assistant", "content": "and three"},
                {"role": "tool", "content": "odd"},
            ]
        )
    )
    assert [type(entry) for entry in history.entries] == [
        SystemInstructionEntry,
        ModelOutputEntry,
        ModelInputEntry,
        ModelOutputEntry,
        ModelOutputEntry,
        DebugEntry,
    ]
    assert history.system_instruction == "be brief"
    shown = [message["content"] for message in history.get_context()]
    assert shown == ["welcome", "one", "two", "and three"]


def test_keys_nobody_knows_are_kept() -> None:
    message = {"role": "user", "content": "x", "metadata": {"CamelCase": 1}, "mood": "fine"}
    _, files = _open(_with([message], uploaded_files=[{"name": "a.txt"}]))
    document = json.loads(files.contents[PATH])
    assert document["uploaded_files"] == [{"name": "a.txt"}]
    assert document["messages"][0]["metadata"] == {"CamelCase": 1, "mood": "fine"}


def test_what_json_can_not_say_twice_the_same_way_is_replaced() -> None:
    data = (
        b'{"messages":[{"role":"assistant","content":"half \\ud83d and \\ud83d\\ude00",'
        b'"tool_calls":[{"tool_name":"t","arguments":{"a":NaN,"b":123456789012345678901234567890},'
        b'"result":null,"status":"error","duration":Infinity}]}]}'
    )
    history, _ = _open(data)
    output, results = history.entries[0], history.entries[1]
    assert isinstance(output, ModelOutputEntry)
    assert output.content == "half \ufffd and 😀"
    assert output.tool_calls[0].arguments == {"a": None, "b": "123456789012345678901234567890"}
    assert isinstance(results, ToolResultsEntry)
    assert (results.results[0].status, results.results[0].duration) == ("failed", 0.0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"noise",
        b"[]",
        b"{}",
        b'{"messages":{}}',
        b'{"messages":["x"]}',
        b'{"messages":[{"mood":"fine"}]}',
        b'{"session_id":"other","messages":[]}',
        b'{"messages":[' + b"[" * 100_000,
        b'\xff{"messages":[]}',
    ],
)
def test_what_is_no_conversation_is_left_alone(data: bytes) -> None:
    files = MemoryFiles()
    files.put(PATH, data)
    with pytest.raises(ConversationDamaged):
        _load(_file(files))
    assert files.contents == {PATH: data}


def test_a_file_of_ours_with_a_broken_first_line_is_not_taken_for_an_older_one() -> None:
    data = file_bytes(chat(2), "abc-def").replace(b'"format":1', b'"format":9')
    with pytest.raises(ConversationDamaged, match="first line is damaged"):
        _open(data)


def test_a_crash_while_taking_in_can_be_repeated() -> None:
    data = json.dumps(OLD).encode()
    for operation in ("open", "write", "sync", "rename", "sync_directory"):
        for place in range(4):
            disk, trouble = MemoryFiles(), Trouble()
            disk.put(PATH, data)
            trouble.once[operation] = [0] * place + [5]
            file = _file(WatchedFiles(disk, trouble))
            try:
                _load(file)
            except StorageUnavailable:
                assert disk.contents[PATH] == data or b'"format":1' in disk.contents[PATH]
                _load(file)
            originals = [bytes(disk.contents[path]) for path in disk.contents if path != PATH]
            assert originals == [data]


def test_an_original_kept_earlier_is_not_overwritten() -> None:
    files = MemoryFiles()
    files.put(PATH, json.dumps(OLD).encode())
    files.put(PATH.with_name(PATH.name + ".orig"), b"another one")
    _load(_file(files))
    assert bytes(files.contents[PATH.with_name(PATH.name + ".orig")]) == b"another one"
    assert PATH.with_name(PATH.name + ".orig-2") in files.contents


async def test_the_store_lists_an_older_file_and_takes_it_in_when_it_is_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / PATH
    path.parent.mkdir()
    path.write_text(json.dumps(OLD))
    store = await open_store(tmp_path)
    row = await row_of(store, "abc-def")
    assert (row.name, row.message_count, row.damaged) == ("帮我查看CPU使用率", 2, False)
    assert [hit.seq for hit in (await store.search("local", SearchQuery(text="系统"))).hits] == [2]
    assert json.loads(path.read_bytes()) == OLD, "listing does not write"
    page = await store.page("abc-def", PageQuery())
    assert [message["role"] for message in page.messages] == ["user", "assistant"]
    assert json.loads(path.with_name(path.name + ".orig").read_bytes()) == OLD
    await (await store.open("abc-def")).record.close()
    assert await row_of(store, "abc-def") == row
    await store.close()


async def test_an_older_file_that_was_taken_in_is_known_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / PATH
    path.parent.mkdir()
    path.write_text(json.dumps(OLD | {"uploaded_files": [{"name": "a.txt", "size": 3}]}, indent=4))
    store = await open_store(tmp_path)
    await store.page("abc-def", PageQuery())
    row = await row_of(store, "abc-def")
    origin = await store.origin("abc-def")
    assert origin.extra == {"uploaded_files": [{"name": "a.txt", "size": 3}]}
    await store.close()
    disk = WatchedDisk(SystemDisk(), lambda operation, length: None)
    again = await open_store(tmp_path, FileSettings(disk=disk))
    assert await row_of(again, "abc-def") == row
    assert disk.bytes_read == 0
    await again.close()


async def test_the_first_instant_there_is_stands_for_no_time_at_all(tmp_path: Path) -> None:
    path = tmp_path / PATH
    path.parent.mkdir()
    first = "0001-01-01T00:00:00"
    told = [{"role": "user", "content": "hi", "timestamp": time} for time in (first, f"{first}Z")]
    path.write_bytes(_with(told))
    store = await open_store(tmp_path)
    opened = await store.open("abc-def")
    created_at = datetime(2025, 12, 31, 10, tzinfo=UTC)
    assert {entry.timestamp for entry in opened.history.entries} == {created_at}
    await store.close()
    _, files = _open(_with(told, created_at=first))
    assert json.loads(files.contents[PATH])["created_at"].startswith("1970-01-01")
