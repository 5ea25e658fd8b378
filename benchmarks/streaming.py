"""B3: a vendor's stream, from its chunks through the server into a client's hands.

Compared with what OpenAI's SDK alone spends on reading the same stream: nplt's figure is
the server's CPU time and the client's together, with everything a turn does besides
(record, commit). The stream comes as fast as it is taken, so that reading is what is
measured. One chunk each millisecond is told beside it, without a goal: then most of it is
waking up, and with nplt two processes do.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.measuring import Rounds, alternate
from benchmarks.peers.streaming_vendor import WORD
from benchmarks.processes import Program, listening, peer, server
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict
from benchmarks.wire import SECONDS_MAX

CHUNKS = 2_000


def streaming(plan: Plan) -> list[Verdict]:
    chunks = plan.sized(CHUNKS, smoke=100)
    with peer("streaming_vendor", str(chunks)) as vendor:
        settings = {"providers": [_provider(vendor)]}
        with (
            server(plan.new_path("streaming"), settings=settings) as ours,
            _reader("nplt", ours) as client,
            _reader("sdk", vendor) as sdk,
            _asking(client, chunks) as ask_client,
            _asking(sdk, chunks) as ask_sdk,
        ):

            def rounds(model: str) -> Rounds:
                return alternate(
                    {
                        "nplt": lambda: _cpu_seconds(ask_client, model, ours, client),
                        "openai SDK": lambda: _cpu_seconds(ask_sdk, model, sdk),
                    },
                    rounds=plan.rounds(),
                )

            for ask in (ask_client, ask_sdk):
                ask("burst")  # imports, and the first of everything
            return [_verdict(rounds("burst"), rounds("paced"), per_unit=1e6 / chunks)]


def _verdict(burst: Rounds, paced: Rounds, *, per_unit: float) -> Verdict:
    question = Question(number="B3", what="vendor → server → client, CPU of both")
    names = ("nplt", "openai SDK")
    details = burst.told(*names, unit="µs", per_unit=per_unit) + " a chunk; one each millisecond: "
    details += paced.told(*names, unit="µs", per_unit=per_unit)
    return question.at_most(
        0.5, burst.ratio(*names), unit="× the openai SDK alone", details=details
    )


def _provider(vendor: Program) -> dict[str, object]:
    return {
        "id": "vendor",
        "type": "openai",
        "api": "chat",
        "base_url": f"http://127.0.0.1:{vendor.port}/v1",
        "models": ["burst", "paced"],
    }


@contextmanager
def _reader(how: str, of: Program) -> Iterator[Program]:
    command = [sys.executable, "-m", "benchmarks.peers.stream_readers", how, str(of.port)]
    with listening(command) as program:
        yield program


@contextmanager
def _asking(reader: Program, chunks: int) -> Iterator[Callable[[str], None]]:
    """Has the reader read one answer, and believes nothing."""
    with socket.create_connection(("127.0.0.1", reader.port), timeout=SECONDS_MAX) as sock:
        told = sock.makefile("rb")

        def ask(model: str) -> None:
            sock.sendall(f"{model}\n".encode())
            length = int(told.readline())
            if length != chunks * len(WORD):
                raise ValueError(f"it read {length} characters")

        yield ask


def _cpu_seconds(ask: Callable[[str], None], model: str, *programs: Program) -> float:
    before = [program.cpu_seconds() for program in programs]
    ask(model)
    return sum(p.cpu_seconds() - b for p, b in zip(programs, before, strict=True))
