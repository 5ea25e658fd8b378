"""P10: stalled and flooding peers cost bounded memory, and delay no answer.

A hundred clients attach to a conversation that streams and read nothing; a hundred others send
requests as fast as they can and read nothing either. Meanwhile a client prompts, again and again,
and must get every answer.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.raw_client import ATTACH, HISTORY_REQUEST, PING, PROMPT, RawClient, encode

from faults.plan import Plan
from faults.progress import Progress
from faults.results import Promised, Result
from faults.serving import PATIENCE_SECONDS, ServerProgram

_OF_EACH = 100
_MEMORY_BYTES_MAX = 200 * 1024 * 1024
_PAGE_BYTES = 4_096


@dataclass(slots=True, kw_only=True)
class Company:
    answers: int = 0
    slowest_seconds: float = 0.0
    flooded_bytes: int = 0
    memory_bytes: int = 0
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{_OF_EACH} stalled and {_OF_EACH} flooding ({self.flooded_bytes / 2**20:,.0f} MiB): "
            f"memory {self.memory_bytes / 2**20:+.0f} MiB; {self.answers:,} answers meanwhile, "
            f"the slowest in {self.slowest_seconds * 1000:.0f} ms"
        )


def stalled_peers(plan: Plan) -> list[Result]:
    seconds = 10.0 if plan.quick else 60.0
    with ServerProgram(plan.new_path("company") / "data") as server:
        server.start()
        company = keep_company(server, seconds=seconds)
    memory_bytes_max = 0 if plan.sabotage else _MEMORY_BYTES_MAX
    if company.memory_bytes > memory_bytes_max:
        company.complaints.append(f"the server grew by {company.memory_bytes / 2**20:.0f} MiB")
    promised = Promised(number="P10", what="stalled and flooding peers")
    return [promised.judged(company.complaints, str(company))]


def keep_company(server: ServerProgram, *, seconds: float) -> Company:
    company, progress = Company(), Progress("P10 answers")
    with ExitStack() as stack:
        host = stack.enter_context(RawClient(server.port, timeout=PATIENCE_SECONDS))
        room = host.hello()["session_id"]
        host.ask("x" * 60_000)
        before = _memory(server.pid)
        words = "word " * int(seconds * 100)
        host.request(PROMPT, {"text": f"!slow {seconds} {words}"})
        stalled = [_stalled(stack, server.port, room) for _ in range(_OF_EACH)]
        flooding = [_peer(stack, server.port) for _ in range(_OF_EACH)]
        is_over = threading.Event()
        flood = threading.Thread(target=_flood, args=(flooding, room, company, is_over))
        flood.start()
        try:
            _ask_meanwhile(server, company, seconds, before, progress)
        finally:
            is_over.set()
            flood.join()
        del stalled
    progress.end()
    return company


def _peer(stack: ExitStack, port: int) -> RawClient:
    peer = stack.enter_context(RawClient(port, timeout=PATIENCE_SECONDS))
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    peer.hello()
    return peer


def _stalled(stack: ExitStack, port: int, room: str) -> RawClient:
    peer = _peer(stack, port)
    peer.send(ATTACH, 2, {"session_id": room, "after_seq": 0})
    return peer


def _flood(peers: list[RawClient], room: str, company: Company, is_over: threading.Event) -> None:
    wave = b"".join(
        encode(PING, seq, bytes(_PAGE_BYTES))
        if seq % 2
        else encode(HISTORY_REQUEST, seq, {"session_id": room, "limit": 200})
        for seq in range(1_000, 1_040)
    )
    waiting = {peer.sock: wave for peer in peers}
    for wire in waiting:
        wire.setblocking(False)
    while not is_over.is_set() and waiting:
        _, writable, _ = select.select([], list(waiting), [], 0.1)
        for wire in writable:
            with suppress(BlockingIOError):
                try:
                    sent = wire.send(waiting[wire])
                except OSError:  # the server has closed it
                    del waiting[wire]
                    continue
                company.flooded_bytes += sent
                waiting[wire] = waiting[wire][sent:] or wave


def _ask_meanwhile(
    server: ServerProgram, company: Company, seconds: float, before: int, progress: Progress
) -> None:
    until = time.monotonic() + seconds
    with RawClient(server.port, timeout=PATIENCE_SECONDS) as someone:
        someone.hello()
        while time.monotonic() < until:
            begun, question = time.monotonic(), f"question {company.answers}"
            if (answer := someone.ask(question)) != question:
                company.complaints.append(f"{question!r} was answered with {answer!r}")
            company.answers += 1
            company.slowest_seconds = max(company.slowest_seconds, time.monotonic() - begun)
            company.memory_bytes = max(company.memory_bytes, _memory(server.pid) - before)
            progress.step()


def _memory(pid: int) -> int:
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return resident * _PAGE_BYTES
