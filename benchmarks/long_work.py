"""B16: the PING of another client while something long runs in the server.

One long conversation of short messages, of which the next call would send as many as are
in memory. Each row does one long thing again and again; meanwhile another process sends a
PING every few milliseconds and notes how long each PONG took. What the row `nothing` says
is the machine's own.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.conversations import FIRST_DAY, message, text_of, write_conversation
from benchmarks.measuring import figure
from benchmarks.processes import Program, server
from benchmarks.progress import tick
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict
from benchmarks.wire import (
    ATTACH,
    COMPACT,
    CONTEXT_REQUEST,
    FILE_DATA,
    FILE_METADATA,
    HISTORY_REQUEST,
    IMPORT,
    PING,
    PONG,
    PROMPT,
    REDACT,
    ROLLBACK,
    SEARCH,
    TURN_FINISHED,
    USAGE,
    Caller,
    encode,
    wait_until_known,
)
from nplt_storage.entries import EpochEntry
from nplt_storage.files.format import LOCAL_USER, Header, empty_tail, encode_header, file_name
from nplt_storage.ids import new_entry_id

ENTRIES = 100_000
CONTENT_BYTES = 40
SECONDS = 3.0
PAUSE_SECONDS = 0.003
P99_MS_MAX = 20.0
NOTHING = "nothing"
FIRST_TURN = "the first turn of a server, which loads the vocabulary of its tokenizer"
WITHOUT_GOAL = (NOTHING, FIRST_TURN)
ANSWER_BYTES = 1_000_000
IMPORTED_BYTES = 20_000_000
OLDER_MESSAGES = 200_000

Work = Callable[[Caller, int], object]
"""Does the long thing once, for the time of that number."""


def long_work(plan: Plan) -> list[Verdict]:
    entries = plan.sized(ENTRIES, smoke=400)
    data_dir = plan.new_path("long")
    for name in ("long", "compacted", "taken_back", "redacted", "prompted"):
        write_long_conversation(data_dir, name, entries)
    imported = write_conversation(
        plan.new_path("imported"), "other", plan.sized(IMPORTED_BYTES, smoke=40_000) // 800
    ).read_bytes()
    older = plan.sized(OLDER_MESSAGES, smoke=400)
    write_older_file(data_dir, "older", older)
    settings = {"models": {"offline/echo": {"context_tokens": 4_000_000}}}
    things: dict[str, Work] = {
        # Only once, and before the rest: it would be going on beside them.
        "making the index anew": lambda caller, _: wait_until_known(caller),
        # Once in a server's life; in a row of its own, so that it does not hide what follows.
        FIRST_TURN: _take_first_turn,
        NOTHING: lambda _caller, _number: time.sleep(0.05),
        f"context of {entries:,} entries": lambda caller, _: caller.request(
            CONTEXT_REQUEST, {"session_id": "long"}
        ),
        "usage": lambda caller, _: caller.request(USAGE, {"session_id": "long"}),
        "compact, and back": lambda caller, _: _compact(caller, entries),
        "rollback of all but one turn, and back": _roll_back,
        "redact": lambda caller, number: caller.request(
            REDACT, {"session_id": "redacted", "seq": entries - 2 * number}
        ),
        "a turn": lambda caller, _: _turn(caller, "word", session_id="prompted"),
        "a 1 MB answer": lambda caller, _: _turn(
            caller, text_of(plan.sized(ANSWER_BYTES, smoke=10_000))
        ),
        "search": lambda caller, _: caller.request(SEARCH, {"query": "quick brown fox"}),
        "export": lambda caller, _: _export(caller, "long", pages=plan.sized(50, smoke=2)),
        "import": lambda caller, _: _import(caller, imported),
        # Only once: then it is a file like any other.
        f"opening an older file of {older:,} messages": lambda caller, _: caller.request(
            HISTORY_REQUEST, {"session_id": "older"}
        ),
    }
    verdicts: list[Verdict] = []
    with server(data_dir, settings=settings) as program:
        for what, work in things.items():
            verdicts.append(_measured(plan, program, what, work))
            tick()
    return verdicts


def write_long_conversation(
    data_dir: Path, session_id: str, entries: int, *, user: str = LOCAL_USER
) -> None:
    """With an epoch at its end that leaves nothing out, so that much is kept in memory."""
    history = data_dir / "history"
    history.mkdir(parents=True, exist_ok=True, mode=0o700)
    first = encode_header(Header(session_id=session_id, created_at=FIRST_DAY, user=user))
    tail = empty_tail(FIRST_DAY, len(first))
    with (history / file_name(session_id, FIRST_DAY)).open("wb") as file:
        file.write(first)
        for seq in range(1, entries + 1):
            entry = message(seq, content=text_of(CONTENT_BYTES))
            record, tail = tail.extended(entry)
            file.write(record)
        epoch = EpochEntry(
            seq=entries + 1, id=new_entry_id(), timestamp=FIRST_DAY, reason="asked", budget_tokens=1
        )
        record, tail = tail.extended(epoch)
        file.write(record)
        file.write(tail.closing_line)


def write_older_file(data_dir: Path, session_id: str, messages: int) -> None:
    """One JSON document, as another program writes it."""
    made = [
        {"role": ("user", "assistant")[number % 2], "content": text_of(CONTENT_BYTES)}
        for number in range(messages)
    ]
    document = {"session_id": session_id, "messages": made, "created_at": FIRST_DAY.isoformat()}
    path = data_dir / "history" / file_name(session_id, FIRST_DAY)
    path.write_text(json.dumps(document))


# The long things


def _compact(caller: Caller, entries: int) -> None:
    """And undoes it: what is compact already is not compacted."""
    caller.request(COMPACT, {"session_id": "compacted"})
    caller.request(ROLLBACK, {"session_id": "compacted", "to_seq": entries + 1})


def _roll_back(caller: Caller, _number: int) -> None:
    caller.request(ROLLBACK, {"session_id": "taken_back", "to_seq": 2})
    caller.request(ROLLBACK, {"session_id": "taken_back", "redo": True})


def _turn(caller: Caller, text: str, **where: str) -> None:
    if where:
        caller.request(ATTACH, where)
    caller.request(PROMPT, {"text": text})
    state = json.loads(caller.until(TURN_FINISHED).payload)["state"]
    if state != "completed":
        raise ValueError(f"the turn ended as {state}")


def _take_first_turn(caller: Caller, number: int) -> None:
    if number == 1:
        _turn(caller, "word")
    else:
        time.sleep(0.05)


def _export(caller: Caller, session_id: str, *, pages: int) -> None:
    before = None
    for _ in range(pages):
        query = {"session_id": session_id, "limit": 200, "max_bytes": 1_000_000}
        page = caller.request(
            HISTORY_REQUEST, query if before is None else {**query, "before": before}
        )["page"]
        if not page["has_more_before"]:
            return
        before = page["before"]


def _import(caller: Caller, document: bytes) -> None:
    announced = {"filename": "it.json", "size": len(document), "purpose": "import"}
    places = range(0, len(document), 60_000)
    pieces = ((FILE_DATA, document[place : place + 60_000]) for place in places)
    stored = caller.request(FILE_METADATA, announced, then=pieces)
    caller.request(IMPORT, {"file_id": stored["file_id"]})


# Measuring


def _measured(plan: Plan, program: Program, what: str, work: Work) -> Verdict:
    question = Question(number="B16", what=f"PING during: {what}")
    with Caller(program.port, patience=300) as caller:
        times = 0
        with _pinging(program.port) as latencies:
            begun = time.perf_counter()
            until = begun + plan.sized(SECONDS, smoke=0.0)
            while not times or time.perf_counter() < until:
                times += 1
                work(caller, times)
            seconds = time.perf_counter() - begun
    ordered = sorted(latencies())
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e3
    details = (
        f"{times} × {figure(seconds / times * 1e3)} ms; PING p50 "
        f"{figure(ordered[len(ordered) // 2] * 1e3)}, max {figure(ordered[-1] * 1e3)} ms"
    )
    if what in WITHOUT_GOAL:
        return question.without_goal(p99, unit="ms p99", details=details)
    return question.at_most(P99_MS_MAX, p99, unit="ms p99", details=details)


@contextmanager
def _pinging(port: int) -> Iterator[Callable[[], list[float]]]:
    """Another process pings inside the block; what is given tells how long each took."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_ping_until_stopped, args=(port, there), daemon=True)
    process.start()
    here.recv()
    try:
        yield here.recv
    finally:
        here.send("enough")


def _ping_until_stopped(port: int, pipe: Connection) -> None:
    """On time, whether the last PONG came or not: each that waits behind a late one is late."""
    latencies: list[float] = []
    with Caller(port) as caller:
        pipe.send("ready")
        due = time.perf_counter()
        while not pipe.poll(max(0.0, due - time.perf_counter())) or not latencies:
            caller.sock.sendall(encode(PING, 1))
            caller.until(PONG)
            now = time.perf_counter()
            while due <= now:
                latencies.append(now - due)
                due += PAUSE_SECONDS
    pipe.send(latencies)
