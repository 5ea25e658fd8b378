"""SWITCH: clients switch between conversations that stream, and receive no foreign event.

The connections are raw, so that no client library hides what the server sends: only events of the
old conversation before the reply to ATTACH, only those of the new one after it, and each call's
text without a gap from its offset.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.support.raw_client import ATTACH, PROMPT, SESSION_NEW, TEXT_DELTA, Frame, RawClient

from faults.plan import Plan
from faults.progress import Progress
from faults.resending import Restartable
from faults.results import Promised, Result
from faults.serving import PATIENCE_SECONDS, ServerProgram

_CLIENTS = 2
_ROOMS = 2
_DELTAS_EACH = 2
_WORDS_PER_SECOND = 500


@dataclass(slots=True, kw_only=True)
class Switches:
    count: int = 0
    deltas: int = 0
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.count:,} switches, {self.deltas:,} deltas heard"


def switching(plan: Plan) -> list[Result]:
    with ServerProgram(plan.new_path("switching") / "data") as server:
        switches = switch_to_and_fro(plan, server, count=100 if plan.quick else 1_000)
    promised = Promised(number="SWITCH", what="to and fro between two streams: no foreign word")
    return [promised.judged(switches.complaints, str(switches))]


def switch_to_and_fro(plan: Plan, server: Restartable, *, count: int) -> Switches:
    """Each client switches `count` times."""
    server.start()
    progress, total = Progress("SWITCH clients", _CLIENTS), Switches()
    with RawClient(server.port, timeout=PATIENCE_SECONDS) as host:
        host.hello()
        rooms = [_streaming(host, number, seconds=60) for number in range(_ROOMS)]
        with ThreadPoolExecutor(_CLIENTS) as threads:
            seen_as = (
                rooms[::-1] if plan.sabotage else rooms
            )  # then all that it receives is foreign
            places = list(zip(rooms, seen_as, strict=True))
            work = [threads.submit(_switch, server.port, places, count) for _ in range(_CLIENTS)]
            for one in work:
                done = one.result()
                total.count += done.count
                total.deltas += done.deltas
                total.complaints += done.complaints
                progress.step()
    progress.end()
    if not total.deltas:
        total.complaints.append("no delta was heard: nothing was tried")
    return total


def _streaming(host: RawClient, number: int, *, seconds: int) -> str:
    room = str(host.request(SESSION_NEW).json["session_id"])
    words = f"room{number} " * (seconds * _WORDS_PER_SECOND)
    host.request(PROMPT, {"text": f"!slow {seconds} {words}"})
    return room


def _switch(port: int, places: list[tuple[str, str]], count: int) -> Switches:
    """`places`: the conversations to switch to, and which of them it believes to be in then."""
    done = Switches()
    with RawClient(port, timeout=PATIENCE_SECONDS) as client:
        here = client.hello()["session_id"]
        held: dict[str, tuple[str, int]] = {}
        for number in range(count):
            there, believed = places[number % len(places)]
            turn_id, offset = held.get(there, (None, 0))
            place = {"turn_id": turn_id, "call": 0, "offset": offset} if turn_id else {}
            client.next_seq = client.next_seq % 0xFFFF + 1
            client.send(ATTACH, client.next_seq, {"session_id": there, **place})
            while (frame := client.receive()).seq != client.next_seq:
                _receive(frame, here, held, done)
            here = believed
            done.count += 1
            received = done.deltas
            while done.deltas < received + _DELTAS_EACH and frame.json["active_turn"]:
                _receive(client.receive(), here, held, done)
    return done


def _receive(frame: Frame, here: str, held: dict[str, tuple[str, int]], done: Switches) -> None:
    event = json.loads(frame.payload)
    if event["session_id"] != here:
        done.complaints.append(f"in {here}, and heard of {event['session_id']}")
    if frame.type != TEXT_DELTA:
        return
    done.deltas += 1
    turn_id, offset = held.get(here, ("", 0))
    expected = (
        offset if event["turn_id"] == turn_id else 0
    )  # the client attached before the first word
    if "replay_from" not in event and event["offset"] != expected:
        done.complaints.append(f"a piece at {event['offset']}, not at {expected}")
    held[here] = (event["turn_id"], event["offset"] + len(event["text"]))
