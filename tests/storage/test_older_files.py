"""Files of an older program, one JSON document each, are taken in and kept."""

from __future__ import annotations

import json
import re
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    encode_line,
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
from nplt_storage.file_system import Disk, FileOperations
from nplt_storage.files.conversation_file import JsonFile
from nplt_storage.files.foreign import read_foreign
from nplt_storage.files.format import encode_header
from nplt_storage.files.json_document import NotForeign

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
    (_, message) = history.recent(2)
    assert message.content == "让我查看一下系统资源使用情况"
    (tool_call,) = message.tool_calls
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


def test_unknown_keys_are_kept() -> None:
    message = {"role": "user", "content": "x", "metadata": {"CamelCase": 1}, "mood": "fine"}
    _, files = _open(_with([message], uploaded_files=[{"name": "a.txt"}]))
    document = json.loads(files.contents[PATH])
    assert document["uploaded_files"] == [{"name": "a.txt"}]
    assert document["messages"][0]["metadata"] == {"CamelCase": 1, "mood": "fine"}


@pytest.mark.parametrize("header_bytes", [20_000, 1024 * 1024 + 5, 1024 * 1024 + 100])
def test_unknown_keys_may_be_long(header_bytes: int) -> None:
    """They stand in the first line, which is then longer than what is read at a time; where
    it ends may be cut in two."""
    _, files = _open(_with(OLD["messages"], notes=""))
    notes = "x" * (header_bytes - files.contents[PATH].index(b"\n") - 1)
    history, files = _open(_with(OLD["messages"], notes=notes))
    assert files.contents[PATH].index(b"\n") + 1 == header_bytes
    assert json.loads(files.contents[PATH])["notes"] == notes
    assert _load(_file(files)) == list(history.entries)


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


@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1, 2**64 - 1])
def test_an_integer_of_64_bits_stays_one(number: int) -> None:
    _, files = _open(_with([], largest=number))
    assert json.loads(files.contents[PATH])["largest"] == number


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
    disk = WatchedDisk(Disk(), lambda operation, length: None)
    again = await open_store(tmp_path, FileSettings(disk=disk))
    assert await row_of(again, "abc-def") == row
    assert disk.bytes_read == 0
    await again.close()


async def test_the_first_instant_there_is_stands_for_no_time_at_all(tmp_path: Path) -> None:
    path = tmp_path / PATH
    path.parent.mkdir()
    first = "0001-01-01T00:00:00"
    messages = [
        {"role": "user", "content": "hi", "timestamp": time} for time in (first, f"{first}Z")
    ]
    path.write_bytes(_with(messages))
    store = await open_store(tmp_path)
    opened = await store.open("abc-def")
    created_at = datetime(2025, 12, 31, 10, tzinfo=UTC)
    assert {entry.timestamp for entry in opened.history.entries} == {created_at}
    await store.close()
    _, files = _open(_with(messages, created_at=first))
    assert json.loads(files.contents[PATH])["created_at"].startswith("1970-01-01")


# Long ones: parsed one message at a time


_TEXTS = st.text(max_size=8) | st.sampled_from(["2025-12-31T10:00:00", "帮我", "é", "😀", "\ud83d"])
_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | _TEXTS
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=5,
)
_MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": _TEXTS},
    optional={"timestamp": _TEXTS, "tool_calls": st.lists(_VALUES, max_size=2), "mood": _VALUES},
)
_DOCUMENTS = st.fixed_dictionaries(
    {"messages": st.lists(_MESSAGES | _VALUES, max_size=5)},
    optional={"session_id": st.just("abc-def"), "created_at": _TEXTS, "size": _VALUES},
)


def _lines_of(data: bytes, **how: int) -> list[bytes] | str:
    try:
        header, entries = read_foreign(data, "abc-def", new_id=counting_ids(), **how)
    except NotForeign as error:
        return str(error)
    return [encode_header(header), *map(encode_line, entries)]


@given(
    document=_DOCUMENTS,
    is_ascii=st.booleans(),
    indent=st.sampled_from([None, 2]),
    window_bytes=st.integers(1, 64),
    cut=st.none() | st.integers(0, 400),
)
def test_a_document_gives_the_same_lines_for_any_window_size(
    document: dict[str, Any], is_ascii: bool, indent: int | None, window_bytes: int, cut: int | None
) -> None:
    text = json.dumps(document, ensure_ascii=is_ascii, indent=indent)
    data = text.encode("utf-8", "replace")[:cut]
    assert _lines_of(data, window_bytes=window_bytes) == _lines_of(data)


@pytest.mark.parametrize("number", [b"12", b"-12", b"1.5", b"1e5", b"1e+5", b"-0.25E-3"])
def test_a_number_is_read_to_its_end_wherever_it_is_cut(number: bytes) -> None:
    data = b'{"size":%b,"messages":[{"role":"user","content":%b}]}' % (number, number)
    message = [_lines_of(data, window_bytes=size) for size in range(1, len(data) + 1)]
    assert message == [_lines_of(data)] * len(data)
    assert json.loads(message[0][0] + b"]}")["size"] == json.loads(number)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"messages":[{"role":"user","content":"' + b"x" * 900_000 + b"\xff", "(byte 900039)"),
        (b'\xef\xbb\xbf{"messages":[' + b" " * 900_000 + b"\xff", "(byte 900013)"),
        (b'{"messages":[}' + b" " * 900_000 + b"\xff", "(byte 900014)"),
        (b'{"messages":[]}' + b" " * 900_000 + b"{}", "no JSON document"),
        (b'{"messages":[' + b'{"role":"user"},' * 40_000 + b"7]}", "message 40001 of 40001 is no"),
    ],
)
def test_what_is_wrong_far_behind_is_found_before_anything_is_taken_in(
    data: bytes, says: str
) -> None:
    files = MemoryFiles()
    files.put(PATH, data)
    with pytest.raises(ConversationDamaged, match=re.escape(says)):
        _load(_file(files))
    assert files.contents == {PATH: data}


def test_of_two_lists_of_messages_the_later_one_counts() -> None:
    one, two = (f'"messages":[{{"role":"user","content":"{word}"}}]' for word in ("one", "two"))
    history, _ = _open(f"{{{one},{two}}}".encode())
    assert [message.content for message in history.recent(5)] == ["two"]
    with pytest.raises(ConversationDamaged, match="no list of messages"):
        _open(f'{{{one},"messages":7}}'.encode())


def _long(messages: int) -> bytes:
    roles = ("user", "assistant")
    return _with([{"role": roles[n % 2], "content": f"word{n}"} for n in range(messages)])


def test_memory_does_not_grow_with_the_number_of_messages(tmp_path: Path) -> None:
    path = tmp_path / PATH.name
    path.write_bytes(_long(8_000))
    file = JsonFile(path, "abc-def", files=Disk(), new_id=counting_ids())
    tracemalloc.start()
    try:
        file.settle()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    with file.reading() as entries:
        assert entries.head_seq == 8_000
    # The file, a window of it, and a block of lines to be written; all entries are 10 MB.
    assert peak < 5_000_000


async def test_a_long_one_is_listed_and_searched_whole_also_if_reading_it_broke_off(
    tmp_path: Path,
) -> None:
    path = tmp_path / PATH
    path.parent.mkdir()
    path.write_bytes(_long(4_500))
    later = FileSettings(read_before_serving_bytes=0)
    for _ in range(3):
        store = await open_store(tmp_path, later)
        await store.close()  # while it is being read, or before
    store = await open_store(tmp_path, later)
    await store.page("abc-def", PageQuery())
    assert (await row_of(store, "abc-def")).message_count == 4_500
    for seq in (1, 2_000, 4_500):
        query = SearchQuery(text=f"word{seq - 1}")
        assert [hit.seq for hit in (await store.search("local", query)).hits] == [seq]
    await store.close()
