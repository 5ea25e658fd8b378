"""B3 and B18: a vendor's stream, from its chunks through the server into a client's hands.

B3 compares with what OpenAI's SDK alone spends on reading the same stream: nplt's figure is
the server's CPU time and the client's together, with everything a turn does besides
(record, commit, journal). In the first row the stream comes as fast as it is taken, so that
reading is what is measured. In the second row a chunk comes each millisecond: then most of the
cost is waking up, and with nplt two processes do.

B18 is about the first word alone, and about time on the wall: the word itself says when the
vendor wrote it.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.measuring import Rounds, alternate, figure, rotated
from benchmarks.peers.streaming_vendor import WORD
from benchmarks.processes import Program, listening, peer, server
from benchmarks.progress import tick
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict
from benchmarks.wire import SECONDS_MAX

CHUNKS = 2_000
FIRST_TOKENS = 300


Ask = Callable[[str], list[int]]
"""Has a reader read one answer of that model; what it tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Readers:
    """A vendor, a server that asks it, and two programs that read answers."""

    ours: Program
    client: Program
    sdk: Program
    ask_client: Ask
    ask_sdk: Ask


@contextmanager
def _readers(plan: Plan, chunks: int) -> Iterator[_Readers]:
    with peer("streaming_vendor", str(chunks)) as vendor:
        settings = {"providers": [_provider(vendor)]}
        with (
            server(plan.new_path("streaming"), settings=settings) as ours,
            _reader("nplt", ours) as client,
            _reader("sdk", vendor) as sdk,
            _asking(client) as ask_client,
            _asking(sdk) as ask_sdk,
        ):
            for ask in (ask_client, ask_sdk):
                ask("burst")  # imports, and the first of everything
            yield _Readers(
                ours=ours, client=client, sdk=sdk, ask_client=ask_client, ask_sdk=ask_sdk
            )


def streaming(plan: Plan) -> list[Verdict]:
    chunks = plan.sized(CHUNKS, smoke=100)
    with _readers(plan, chunks) as readers:

        def rounds(model: str) -> Rounds:
            def cpu(ask: Ask, *programs: Program) -> float:
                before = [program.cpu_seconds() for program in programs]
                length, *_ = ask(model)
                if length != chunks * len(WORD):
                    raise ValueError(f"it read {length} characters")
                return sum(p.cpu_seconds() - b for p, b in zip(programs, before, strict=True))

            return alternate(
                {
                    "nplt": lambda: cpu(readers.ask_client, readers.ours, readers.client),
                    "openai SDK": lambda: cpu(readers.ask_sdk, readers.sdk),
                },
                rounds=plan.rounds(),
            )

        return [
            _verdict("vendor → server → client, CPU of both", 0.5, rounds("burst"), chunks),
            _verdict("the same, a chunk each millisecond", 1.0, rounds("paced"), chunks),
        ]


def first_token(plan: Plan) -> list[Verdict]:
    """B18: from the vendor's first word to the hands of who reads, and before that from
    asking to the vendor, through nplt and with the SDK."""
    names = ("nplt", "openai SDK")
    before: dict[str, list[float]] = {name: [] for name in names}
    after: dict[str, list[float]] = {name: [] for name in names}
    with _readers(plan, plan.sized(CHUNKS, smoke=100)) as readers:
        asks: dict[str, Ask] = {"nplt": readers.ask_client, "openai SDK": readers.ask_sdk}
        for number in range(plan.sized(FIRST_TOKENS, smoke=3)):
            for name in rotated(list(names), number):
                _, asked, answered = asks[name]("stamped")
                before[name].append(asked / 1e6)
                after[name].append(answered / 1e6)
            if number % 50 == 0:
                tick()

    def summary(found: dict[str, list[float]]) -> str:
        return ", ".join(
            f"{name} p50 {figure(_percentile(found[name], 50))} p99 "
            f"{figure(_percentile(found[name], 99))} ms"
            for name in names
        )

    def row(what: str, found: dict[str, list[float]], percent: int) -> tuple[Question, float]:
        ours, theirs = (_percentile(found[name], percent) for name in names)
        return Question(number="B18", what=what), ours / theirs

    spent, ratio = row("first token, vendor → client's hands, p50", after, 50)
    late, late_ratio = row("the same, p99", after, 99)
    stored, ours = _sync_milliseconds(plan), _percentile(before["nplt"], 50)
    asking = Question(number="B18", what="before it: prompt → vendor, stored on the way, p50")
    asking_ratio = ours / (_percentile(before["openai SDK"], 50) + stored)
    sdk = "× the openai SDK alone"
    return [
        spent.at_most(1, ratio, unit=sdk, details=summary(after)),
        late.without_goal(late_ratio, unit=sdk, details=summary(after)),
        asking.at_most(
            1.5,
            asking_ratio,
            unit="× (the openai SDK alone + fdatasync)",
            details=f"{summary(before)}; pwrite and fdatasync {figure(stored)} ms",
        ),
    ]


def _sync_milliseconds(plan: Plan) -> float:
    """The median of bare appends of the size of a prompt's line."""
    descriptor, line, found = os.open(plan.new_path("sync"), os.O_RDWR | os.O_CREAT), b"x" * 400, []
    try:
        for number in range(plan.sized(FIRST_TOKENS, smoke=3)):
            begun = time.perf_counter()
            os.pwrite(descriptor, line, number * len(line))
            os.fdatasync(descriptor)
            found.append((time.perf_counter() - begun) * 1e3)
    finally:
        os.close(descriptor)
    return _percentile(found, 50)


def _percentile(found: list[float], percent: int) -> float:
    return sorted(found)[min(len(found) - 1, len(found) * percent // 100)]


def _verdict(what: str, limit: float, rounds: Rounds, chunks: int) -> Verdict:
    names = ("nplt", "openai SDK")
    details = rounds.summary(*names, unit="µs a chunk", per_unit=1e6 / chunks)
    return Question(number="B3", what=what).at_most(
        limit, rounds.ratio(*names), unit="× the openai SDK alone", details=details
    )


def _provider(vendor: Program) -> dict[str, object]:
    return {
        "id": "vendor",
        "type": "openai",
        "api": "chat",
        "base_url": f"http://127.0.0.1:{vendor.port}/v1",
        "models": ["burst", "paced", "stamped"],
    }


@contextmanager
def _reader(how: str, of: Program) -> Iterator[Program]:
    command = [sys.executable, "-m", "benchmarks.peers.stream_readers", how, str(of.port)]
    with listening(command) as program:
        yield program


@contextmanager
def _asking(reader: Program) -> Iterator[Ask]:
    with socket.create_connection(("127.0.0.1", reader.port), timeout=SECONDS_MAX) as sock:
        summary = sock.makefile("rb")

        def ask(model: str) -> list[int]:
            sock.sendall(f"{model}\n".encode())
            return [int(number) for number in summary.readline().split()]

        yield ask
