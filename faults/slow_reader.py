"""LAG: a client that reads nothing for a minute, while 2,000 events a second are emitted.

It is a process with the client library, and it is stopped (SIGSTOP) while others prompt in its
conversation. The server may use at most 16 MiB more for it; the others receive every word
meanwhile. Then it continues, and must end up with every entry of the record, in order, once: from
the socket as far as the events were sent, and from the history after `lagged`.

`python -m faults.slow_reader PORT SESSION_ID` is that process. It ends at an entry with an agreed
text.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from faults.plan import Plan
from faults.results import Promised, Result
from faults.serving import PATIENCE_SECONDS, ServerProgram, clean_environment
from faults.stored import records_in_the_files
from nplt_client import Client, EntryAdded, EventFeed, SessionEvent, connect

_MEMORY_BYTES_MAX = 16 * 1024 * 1024
_WARM_UP_SECONDS = 3.0
_TEXT = "word " * 20_000
_WORD_BY_WORD = (sys.executable, "-m", "faults.event_per_word")
_GOOD_MORNING = "good morning"


@dataclass(slots=True, kw_only=True)
class Lag:
    events: int = 0
    turns: int = 0
    seconds: float = 0.0
    memory_bytes: int = 0
    complaints: list[str] = field(default_factory=list)


def slow_reader(plan: Plan) -> list[Result]:
    seconds, lag = 10.0 if plan.quick else 60.0, Lag()
    with ServerProgram(plan.new_path("lag") / "data", through=_WORD_BY_WORD) as server:
        server.start()
        asyncio.run(_let_it_sleep(server, lag, seconds, sabotage=plan.sabotage))
    promised = Promised(number="LAG", what="a client that reads nothing for a minute")
    today = (
        f"{lag.events:,} events of {lag.turns:,} turns in {lag.seconds:.0f} s "
        f"({lag.events / lag.seconds:,.0f} a second); "
        f"the server's memory: {lag.memory_bytes / 1024 / 1024:+.1f} MiB"
    )
    return [promised.judged(lag.complaints, today)]


async def _let_it_sleep(server: ServerProgram, lag: Lag, seconds: float, *, sabotage: bool) -> None:
    url = f"nplt://127.0.0.1:{server.port}"
    async with connect(url) as talker, connect(url) as other:
        room = (await talker.new()).session_id
        await other.attach(room)
        awake = asyncio.create_task(_receive(other.events(), lag))
        sleeper = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "faults.slow_reader", str(server.port), room),
            stdout=subprocess.PIPE,
            env=clean_environment(),
        )
        assert sleeper.stdout is not None
        await sleeper.stdout.readline()
        await _talk(talker, _WARM_UP_SECONDS, Lag())
        before = _memory(server.pid)
        os.kill(sleeper.pid, signal.SIGSTOP)
        watch = asyncio.create_task(_watch(server.pid, before, lag))
        lag.events = 0
        await _talk(talker, seconds, lag)
        watch.cancel()
        os.kill(sleeper.pid, signal.SIGCONT)
        await talker.ask_text(_GOOD_MORNING)
        line = await asyncio.wait_for(sleeper.stdout.readline(), PATIENCE_SECONDS)
        await sleeper.wait()
        received = await asyncio.wait_for(awake, PATIENCE_SECONDS)
    records, unreadable = records_in_the_files(server.data_dir)
    lag.complaints += unreadable
    stored = [entry["id"] for entry in records[room] if _is_message(entry)][1 if sabotage else 0 :]
    if received != stored:
        lag.complaints.append("the one who was awake did not hear the record")
    if json.loads(line) != stored:
        lag.complaints.append("the one who slept does not hold the record")
    if lag.memory_bytes > _MEMORY_BYTES_MAX:
        lag.complaints.append(f"the server grew by {lag.memory_bytes / 1024 / 1024:.1f} MiB")


async def _talk(client: Client, seconds: float, lag: Lag) -> None:
    begun = time.monotonic()
    while lag.seconds < seconds:
        await client.ask_text(_TEXT)
        lag.turns += 1
        lag.seconds = time.monotonic() - begun


async def _receive(feed: EventFeed, lag: Lag) -> list[str]:
    """The ids of all entries, until the last prompt is answered."""
    received: list[str] = []
    async for event in feed:
        lag.events += 1
        if isinstance(event, SessionEvent) and event.event == "lagged":
            lag.complaints.append("the one who was awake lagged")
        if isinstance(event, EntryAdded) and _is_message(event.entry):
            received.append(str(event.entry["id"]))
            if _is_last(event.entry):
                break
    return received


def _is_message(entry: Mapping[str, object]) -> bool:
    return entry["role"] in ("user", "assistant")


def _is_last(entry: Mapping[str, object]) -> bool:
    return (entry["role"], entry["content"]) == ("assistant", _GOOD_MORNING)


async def _watch(pid: int, before: int, lag: Lag) -> None:
    while True:
        lag.memory_bytes = max(lag.memory_bytes, _memory(pid) - before)
        await asyncio.sleep(0.1)


def _memory(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _be_slow(port: int, room: str) -> None:
    async with connect(f"nplt://127.0.0.1:{port}") as client:
        feed, held = client.events(), Held()
        await client.attach(room, after_seq=0)
        print("awake", flush=True)
        async for event in feed:
            if isinstance(event, SessionEvent) and event.event == "lagged":
                await held.read_on(client)
            elif isinstance(event, EntryAdded) and _is_message(event.entry):
                held.take(event.entry)
            if held.is_complete:
                break
    print(json.dumps(held.ids), flush=True)


class Held:
    """The entries that a client has: from events, and from the history where events are missing."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.is_complete = False
        self._seq = 0

    def take(self, entry: Mapping[str, object]) -> None:
        seq = int(str(entry["seq"]))
        if seq > self._seq:
            self.ids.append(str(entry["id"]))
            self._seq = seq
            self.is_complete = _is_last(entry)

    async def read_on(self, client: Client) -> None:
        while True:
            page = await client.history(200, after=self._seq, order="log")
            for message in page.messages:
                self.take(message)
            if not page.page.has_more_after:
                return


if __name__ == "__main__":
    asyncio.run(_be_slow(int(sys.argv[1]), sys.argv[2]))
