"""What a cluster costs and brings, as ratios of figures of one run.

Processor time of the servers is measured, not time: others may use the machine as well. How
many turns a second servers could do on processors of their own follows from that of the
busiest of them.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from tests.support.raw_client import (
    ATTACH,
    DETACH,
    ERROR,
    HEADER,
    PROMPT,
    SESSION_EVENT,
    SESSION_NEW,
    TEXT_DELTA,
    TURN_FINISHED,
    Closed,
    RawClient,
)

from faults.cluster import Cluster, Member, running_cluster
from faults.plan import Plan
from faults.results import Promised, Result

_CLIENTS = 16
_ROUNDS = 3
"""The best of them counts: others disturb, and never help."""
_IDLE_SECONDS = 6.0
_DRAINED_EVERY = 20
_LIMITS: dict[str, object] = {"connections_max": 3_000}

RELAYED_DELTA_MAX = 2.0
TWO_SERVERS_MIN = 1.6


def costs(plan: Plan) -> list[Result]:
    with running_cluster(plan, servers=2, limits=_LIMITS) as cluster:
        one, two = cluster.members
        warm_up(cluster)
        turns = 40 if plan.quick else 150
        rounds = [
            (_turns_per_second([one], turns), _turns_per_second([one, two], turns))
            for _ in range(_ROUNDS)
        ]
        alone, both = (max(each) for each in zip(*rounds, strict=True))
        words = 500 if plan.quick else 3_000
        deltas = [
            (watchers, _cost_of_stream(one, two, watchers=watchers, words=words))
            for watchers in (1, 20)
        ]
        received, seconds = _watchers(one, two, 100 if plan.quick else 1_000)
        idle = _idle(cluster, 50 if plan.quick else 1_000)
    if plan.sabotage:
        both, deltas = alone, [(watchers, (1.0, 3.0)) for watchers, _ in deltas]
        received -= 1
    ratio = both / alone
    return [
        _judged(
            "turns a second of two servers",
            ratio >= TWO_SERVERS_MIN,
            f"{alone:.0f} of one, {both:.0f} of two, on a processor each: {ratio:.2f} ×",
        ),
        *(
            _judged(
                f"a relayed delta for {watchers} watchers",
                relayed / direct <= RELAYED_DELTA_MAX,
                f"{direct * 1e6:.0f} µs direct, {relayed * 1e6:.0f} µs relayed, both servers: "
                f"{relayed / direct:.2f} ×",
            )
            for watchers, (direct, relayed) in deltas
        ),
        _judged(
            "watchers at a server that is not the owner",
            received == (100 if plan.quick else 1_000),
            f"{received:,} heard all of an answer, the last after {seconds:.1f} s",
        ),
        _judged(
            "conversations that are merely stored",
            idle[1] <= idle[0] * 1.5 + 2 and not plan.sabotage,
            f"{idle[0]} commands to Redis in {_IDLE_SECONDS:g} s without, {idle[1]} with them",
        ),
    ]


def _judged(what: str, is_kept: bool, today: str) -> Result:
    return Promised(number="COSTS", what=what).judged([] if is_kept else [today], today)


def warm_up(cluster: Cluster) -> None:
    """What is loaded at the first turn."""
    for member in cluster.members:
        with _connected(member) as wire:
            for number in range(3):
                _ask(wire, f"fast warm up {member.name} {number}")


def _connected(member: Member) -> RawClient:
    wire = RawClient(member.port)
    wire.hello()
    return wire


def _ask(wire: RawClient, text: str) -> None:
    receipt = wire.request(PROMPT, {"text": text})
    assert receipt.type != ERROR, receipt.text
    while wire.event(TURN_FINISHED).json["turn_id"] != receipt.json["turn_id"]:
        pass


def _turns_per_second(members: list[Member], turns: int) -> float:
    """Each client in a conversation of its own, at the server that owns it."""

    def talk(number: int) -> None:
        with _connected(members[number % len(members)]) as wire:
            wire.request(SESSION_NEW)
            for turn in range(turns):
                _ask(wire, f"fast turn {number} {turn}")

    spent = _spent(members, lambda: _all_at_once(talk, _CLIENTS))
    return _CLIENTS * turns / max(spent)


def _all_at_once(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _spent(members: list[Member], work: Callable[[], None]) -> list[float]:
    """Processor seconds of each."""
    before = [member.cpu_seconds for member in members]
    work()
    return [member.cpu_seconds - was for member, was in zip(members, before, strict=True)]


def _cost_of_stream(
    owner: Member, edge: Member, *, watchers: int, words: int
) -> tuple[float, float]:
    """Processor seconds of both servers for each delta to each watcher: at the owner, and at the
    other. The best of some rounds."""
    found: list[list[float]] = [[], []]
    for number in range(_ROUNDS):
        for place, member in enumerate((owner, edge)):
            with _connected(owner) as wire:
                session_id = wire.request(SESSION_NEW).json["session_id"]
                _ask(wire, f"fast first {watchers} {number} {place}")
                wire.request(DETACH)  # it hears nothing itself
                wires = _attached(member, session_id, watchers)
                text = f"fast {watchers} {number} {place} " + "word " * words
                spent = _spent([owner, edge], partial(_stream, wire, wires, session_id, text))
                for each in wires:
                    each.sock.close()
            found[place].append(sum(spent) / (words * watchers))
    direct, relayed = map(min, found)
    return direct, relayed


def _attached(member: Member, session_id: str, count: int) -> list[RawClient]:
    """All of them read who else comes: a client that does not lags."""
    wires = [_connected(member) for _ in range(count)]
    for number, wire in enumerate(wires, start=1):
        reply = wire.request(ATTACH, {"session_id": session_id})
        assert reply.type != ERROR, reply.text
        if number % _DRAINED_EVERY == 0:
            for each in wires[:number]:
                _drain(each)
    return wires


def _drain(wire: RawClient) -> None:
    """Drops what has come."""
    wire.pushed.clear()
    coming = select.poll()  # not `select`, which knows a thousand descriptors only
    coming.register(wire.sock, select.POLLIN)
    while coming.poll(0) and (data := wire.sock.recv(1 << 16)):
        wire.buffer += data
    while len(wire.buffer) >= HEADER.size:
        end = HEADER.size + HEADER.unpack_from(wire.buffer)[2]
        if len(wire.buffer) < end:
            break
        wire.buffer = wire.buffer[end:]


def _stream(wire: RawClient, wires: list[RawClient], session_id: str, text: str) -> None:
    wire.request(PROMPT, {"text": text, "session_id": session_id})
    for each in wires:
        each.event(TURN_FINISHED)


def _watchers(owner: Member, edge: Member, count: int) -> tuple[int, float]:
    """How many heard the whole of an answer, and after how long the last."""
    with _connected(owner) as first:
        session_id = first.request(SESSION_NEW).json["session_id"]
        _ask(first, f"say first to {count}")
    wires = _attached(edge, session_id, count)
    with _attached(owner, session_id, 1)[0] as wire:
        text = "say " + " ".join(f"word{number}" for number in range(50))
        began = time.monotonic()
        turn_id = wire.request(PROMPT, {"text": text}).json["turn_id"]
        received = sum(_receives(each, turn_id, f"{text} ") for each in wires)
        seconds = time.monotonic() - began
    for each in wires:
        each.sock.close()
    return received, seconds


def _receives(wire: RawClient, turn_id: str, text: str) -> bool:
    text_received = ""
    with suppress(Closed, OSError):
        for frame in wire.events():
            if frame.type == TEXT_DELTA and frame.json["turn_id"] == turn_id:
                text_received += frame.json["text"]
            if frame.type == TURN_FINISHED and frame.json["turn_id"] == turn_id:
                return text_received == text
            if frame.type == SESSION_EVENT and frame.json["event"] == "lagged":
                break
    return False


def _idle(cluster: Cluster, count: int) -> tuple[int, int]:
    """Commands that Redis gets while nobody does anything: with few conversations, and with
    that many more that nobody has open."""
    before = _commands_while_idle(cluster)
    with _connected(cluster.members[0]) as wire:
        for number in range(count):
            wire.request(SESSION_NEW)
            _ask(wire, f"fast stored {number}")
    return before, _commands_while_idle(cluster)


def _commands_while_idle(cluster: Cluster) -> int:
    for member in cluster.members:
        member.terminate()
    for member in cluster.members:
        member.start()
    client = cluster.storage.connect()
    time.sleep(1.0)  # they announce themselves
    was = int(client.info("stats")["total_commands_processed"])
    time.sleep(_IDLE_SECONDS)
    return int(client.info("stats")["total_commands_processed"]) - was - 1
