"""RESUME: the server is killed while answers stream, and the clients resume.

Each client joins the pieces of its turn, as a terminal would print them. When the turn is over, cut
by a kill or whole, the printed text must be the text of the record: no word twice, none missing,
none added.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from tests.support.faulty_network import FaultyNetwork
from tests.support.fork_server import ForkServer

from faults.plan import Plan
from faults.progress import Progress
from faults.resending import IMPATIENT, Restartable, kill_and_start
from faults.results import Promised, Result
from faults.sabotage import cut_before
from faults.serving import ForkedServer, clean_environment
from faults.stored import conversation_files, records_in_the_files, records_on_the_wire
from nplt_client import Client, TextDelta, connect
from nplt_client.received_turn import ReceivedTurn

_CLIENTS = 4
_WORDS = 40
_ANSWER_SECONDS = 0.4
_LIFE_SECONDS_MAX = 0.6


@dataclass(slots=True, kw_only=True)
class Streams:
    printed: dict[str, str] = field(default_factory=dict)
    """By the turn's id."""
    states: dict[str, int] = field(default_factory=dict)
    pieces: int = 0
    kills: int = 0
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        states = ", ".join(f"{count:,} {state}" for state, count in sorted(self.states.items()))
        answers = f"{len(self.printed):,} answers ({states}), {self.pieces:,} pieces"
        return f"{self.kills:,} kills, {answers}"


def mid_stream(plan: Plan) -> list[Result]:
    with (
        ForkServer(clean_environment()) as fork_server,
        ForkedServer(fork_server, plan.new_path("streams") / "data") as server,
    ):
        streams = kill_in_mid_stream(plan, server, kills=25 if plan.quick else 500)
    if not streams.states.get("interrupted"):
        streams.complaints.append("no answer was ever cut: nothing was tried")
    promised = Promised(number="RESUME", what="kills in mid-stream: what was shown is the record")
    return [promised.judged(streams.complaints, str(streams))]


def kill_in_mid_stream(plan: Plan, server: Restartable, *, kills: int) -> Streams:
    streams = Streams()
    server.start()
    asyncio.run(_stream_and_kill(plan, server, streams, kills=kills))
    if plan.sabotage:
        server.kill()
        path = conversation_files(server.data_dir)[0]
        path.write_bytes(cut_before(path.read_bytes(), 2))
        server.start()
    _judge(streams, server)
    return streams


async def _stream_and_kill(
    plan: Plan, server: Restartable, streams: Streams, *, kills: int
) -> None:
    progress, chance = Progress("RESUME kills", kills), plan.chance("streams")
    async with FaultyNetwork(chance, target=server.port) as road:
        road.smooth = True
        over = asyncio.Event()
        listeners = [
            asyncio.create_task(_listen(road.url, number, streams, over))
            for number in range(_CLIENTS)
        ]
        for _ in range(kills):
            printed = streams.pieces
            while streams.pieces == printed:
                await asyncio.sleep(0.002)
            await asyncio.sleep(_moment(chance))
            await kill_and_start(server, road)
            streams.kills += 1
            progress.step(str(streams))
        over.set()
        await asyncio.gather(*listeners)
    progress.end()


def _moment(chance: random.Random) -> float:
    return chance.random() * _LIFE_SECONDS_MAX


async def _listen(url: str, number: int, streams: Streams, over: asyncio.Event) -> None:
    async with connect(url, reconnect=IMPATIENT) as client:
        while not over.is_set():
            words = " ".join(f"{number}.{len(streams.printed)}.{word}" for word in range(_WORDS))
            await _print(client, f"!slow {_ANSWER_SECONDS} {words}", streams)


async def _print(client: Client, prompt: str, streams: Streams) -> None:
    printer, printed, held = ReceivedTurn(), "", 0
    async with client.ask(prompt) as turn:
        async for event in turn:
            if isinstance(event, TextDelta):
                if event.offset != held:
                    streams.complaints.append(f"a piece at {event.offset}, not at {held}")
                held = event.offset + len(event.text)
                streams.pieces += 1
            printed += printer.apply(event)
        turn_id, finished = turn.receipt.turn_id, turn.finished
    if finished is None or printed != turn.text:
        streams.complaints.append(f"{turn_id}: printed {printed!r}, told {turn.text!r}")
    streams.printed[turn_id] = printed
    state = finished.state if finished else "without an end"
    streams.states[state] = streams.states.get(state, 0) + 1


def _judge(streams: Streams, server: Restartable) -> None:
    on_the_wire, refused = records_on_the_wire(server.port)
    in_the_files, unreadable = records_in_the_files(server.data_dir)
    streams.complaints += [*refused, *unreadable]
    for where, records in (("on the wire", on_the_wire), ("in the files", in_the_files)):
        answers: dict[str, list[str]] = {}
        for record in records.values():
            for entry in record:
                if entry["kind"] == "model_output":
                    answers.setdefault(entry["turn_id"], []).append(entry["content"])
        for turn_id, printed in streams.printed.items():
            stored = answers.get(turn_id, [""])
            if stored != [printed]:
                streams.complaints.append(
                    f"{where}: turn {turn_id} was shown as {printed!r} and is {stored!r}"
                )
