"""The tools that come with the server: the time, the machine, long results, the past."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tool_hosts import NoConversationHost

from nplt_protocol import JsonObject
from nplt_server.tools import ToolFailed, ToolHost
from nplt_server.tools.builtin import builtin_tools
from nplt_storage.entries import BlobReference, ToolCallResult
from nplt_storage.search import SearchHit

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TOOLS = {tool.description.name: tool for tool in builtin_tools(lambda: NOON, [])}
PLACE = re.compile(r"\[bytes (\d+) to (\d+) of (\d+); (?:next offset (\d+)|the end)\]\n")


class Host(NoConversationHost):
    """A conversation with one result, of which the beginning is in the record."""

    def __init__(self, whole: str = "", shown: str | None = None) -> None:
        data = self._data = whole.encode()
        self._result = ToolCallResult(
            tool_call_id="long",
            tool_name="it",
            status="success",
            result=whole if shown is None else shown,
            duration=0,
            timestamp=NOON,
            blob=None
            if shown is None
            else BlobReference(blob_id="b", size=len(data), sha256="0" * 64),
        )
        self.hits: list[SearchHit] = []

    def find_result(self, tool_call_id: str) -> ToolCallResult | None:
        return self._result if tool_call_id == "long" else None

    async def read_blob(self, blob_id: str, offset: int, length: int) -> bytes:
        assert blob_id == "b"
        return self._data[offset : offset + length]

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        return self.hits[:limit]


async def use(name: str, host: ToolHost | None = None, /, **arguments: object) -> str:
    given: JsonObject = arguments  # type: ignore[assignment]
    return await TOOLS[name].run(given, host or NoConversationHost())


def test_they_are_always_offered_in_the_same_order_and_files_only_where_there_are_roots() -> None:
    assert [*TOOLS] == ["now", "sys_monitor", "read_result", "search_history"]
    with_roots = builtin_tools(lambda: NOON, [Path("/srv")])
    assert [tool.description.name for tool in with_roots] == [*TOOLS, "read_file", "list_files"]


async def test_now_gives_the_time_in_any_time_zone() -> None:
    assert await use("now") == "2026-01-01T12:00:00+00:00"
    assert await use("now", timezone="Asia/Tokyo") == "2026-01-01T21:00:00+09:00"


@pytest.mark.parametrize("zone", ["Mars/Base", "../../etc/passwd", "Europe", "a\0b", "x" * 10_000])
async def test_an_unknown_time_zone_is_an_error(zone: str) -> None:
    with pytest.raises(ToolFailed, match=r"^there is no time zone .{1,80}$"):
        await use("now", timezone=zone)


async def test_sys_monitor_tells_what_is_asked_for_in_lines_for_people() -> None:
    used = r"\d+\.\d of \d+\.\d GiB used \(\d+\.\d %\)"
    assert re.fullmatch(
        r"CPU usage: \d+\.\d % of \d+ cores?", await use("sys_monitor", metric="cpu")
    )
    assert re.fullmatch(f"Memory: {used}", await use("sys_monitor", metric="memory"))
    assert re.search(f"(?m)^Disk /.*: {used}$", await use("sys_monitor", metric="disk"))
    lines = (await use("sys_monitor")).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["CPU", "Memory:", "Disk"]


async def test_sys_monitor_says_what_it_knows_when_asked_for_something_else() -> None:
    with pytest.raises(ToolFailed, match=r"^metric: must be one of cpu, memory, disk, all; you"):
        await use("sys_monitor", metric="gpu")


def page(host: Host, *, length: int, offset: int | None = None) -> str:
    """All parts from there on, by the next offset that each one names."""

    async def all_parts() -> str:
        text, next_offset = "", offset
        while True:
            part = await use(
                "read_result",
                host,
                tool_call_id="long",
                length=length,
                **({} if next_offset is None else {"offset": next_offset}),
            )
            place = PLACE.match(part)
            assert place is not None
            assert len(part[place.end() :].encode()) == int(place[2]) - int(place[1])
            text += part[place.end() :]
            if place[4] is None:
                return text
            next_offset = int(place[4])

    return asyncio.run(all_parts())


LONG = st.text(st.sampled_from("aé漢😀\n"), min_size=1, max_size=200)


@given(LONG, st.integers(16, 60), st.data())
def test_paging_through_a_result_gives_all_of_it_and_no_half_characters(
    whole: str, length: int, data: st.DataObject
) -> None:
    beginning = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert beginning + page(Host(whole, beginning), length=length) == whole
    assert page(Host(whole, beginning), length=length, offset=0) == whole


@given(LONG, st.integers(16, 60))
def test_offsets_that_a_model_makes_up_leave_nothing_out(whole: str, length: int) -> None:
    async def parts() -> str:
        host = Host(whole, "")
        output = [
            await use("read_result", host, tool_call_id="long", offset=offset, length=length)
            for offset in range(0, len(whole.encode()), length)
        ]
        return "".join(PLACE.sub("", part) for part in output)

    assert asyncio.run(parts()) == whole


async def test_a_result_that_is_whole_in_the_record_is_read_from_its_beginning() -> None:
    read = await use("read_result", Host("all of it"), tool_call_id="long")
    assert read == "[bytes 0 to 9 of 9; the end]\nall of it"


async def test_read_result_of_an_unknown_call_is_an_error() -> None:
    with pytest.raises(ToolFailed, match="no result of a call 'short'"):
        await use("read_result", Host("x"), tool_call_id="short")
    with pytest.raises(ToolFailed, match="nothing at 9: the result has 1 bytes"):
        await use("read_result", Host("x"), tool_call_id="long", offset=9)


async def test_read_result_reports_a_lost_blob() -> None:
    class Emptied(Host):
        async def read_blob(self, blob_id: str, offset: int, length: int) -> bytes:
            return b""

    with pytest.raises(ToolFailed, match="not there any more"):
        await use("read_result", Emptied("abcdef", "a"), tool_call_id="long")


async def test_search_history_gives_conversation_and_sequence_number() -> None:
    host = Host()
    for seq, name in ((7, "Trip to\nLyon"), (3, "")):
        host.hits.append(
            SearchHit(
                session_id="0123abcd",
                name=name,
                seq=seq,
                role="user",
                snippet="by train\nor  car",
                timestamp=NOON,
            )
        )
    assert (await use("search_history", host, query="train")).splitlines() == [
        "0123abcd#7, Trip to Lyon (user, 2026-01-01): by train or car",
        "0123abcd#3 (user, 2026-01-01): by train or car",
        "[around reads more of one]",
    ]


async def test_search_history_pages_by_offset() -> None:
    host = Host()
    host.hits = [
        SearchHit(session_id="a", name="", seq=n, role="user", snippet="x", timestamp=NOON)
        for n in range(5)
    ]
    first = (await use("search_history", host, query="x", limit=2)).splitlines()
    assert first[-1] == "[next offset 2; around reads more of one]"
    last = (await use("search_history", host, query="x", limit=2, offset=4)).splitlines()
    assert last == ["a#4 (user, 2026-01-01): x", "[around reads more of one]"]
    assert await use("search_history", host, query="x", offset=5) == "there are only 5 hits"


async def test_search_history_needs_something_to_look_for() -> None:
    with pytest.raises(ToolFailed, match="say what to look for"):
        await use("search_history", Host())
    for around in ("abcd", "abcd#x", "#"):
        with pytest.raises(ToolFailed, match="around is a hit"):
            await use("search_history", Host(), around=around)


async def test_search_history_without_hits_gives_a_hint() -> None:
    said = await use("search_history", Host(), query="train")
    assert said == "nothing was found; try other words, fewer, or only the beginning of one"
