"""P7: a prompt that is sent again with its `message_id` runs once.

Clients prompt through a proxy that cuts their connections anywhere, before and after the receipt,
while the server is killed and restarted now and then. The library resends what was not
acknowledged. In the end every prompt must be in the record once, and every answer that was received
must be the one in the record.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.support.faulty_network import FaultyNetwork
from tests.support.fork_server import ForkServer

from faults.plan import Plan
from faults.progress import Progress
from faults.results import Promised, Result
from faults.serving import ForkedServer, clean_environment
from faults.stored import Records, records_in_the_files, records_on_the_wire
from nplt_client import Client, Patience, TurnInterrupted, connect

IMPATIENT = Patience(first_seconds=0.002, most_seconds=0.05, from_the_start=True)
_CLIENTS = 12
_ROOMS = 6
_PROMPTS_PER_KILL = 200


class Restartable(Protocol):
    """A server that can be killed, and comes back on another port."""

    @property
    def data_dir(self) -> Path: ...

    @property
    def port(self) -> int: ...

    def start(self) -> object: ...

    def kill(self) -> object: ...


@dataclass(slots=True, kw_only=True)
class Resent:
    asked: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    """The answers, by the turn's id."""
    recognized: int = 0
    """Prompts that the server already had when they were resent."""
    interrupted: int = 0
    cuts: int = 0
    kills: int = 0
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{len(self.asked):,} prompts, {self.cuts:,} cuts, {self.kills} kills; "
            f"{self.recognized:,} came again after they had been stored, "
            f"{self.interrupted:,} were interrupted by a kill"
        )


def resending(plan: Plan) -> list[Result]:
    prompts = 600 if plan.quick else 10_000
    with (
        ForkServer(clean_environment()) as fork_server,
        ForkedServer(fork_server, plan.new_path("resending") / "data") as server,
    ):
        resent = ask_over_faulty_network(
            plan, server, prompts=prompts, kills=prompts // _PROMPTS_PER_KILL
        )
    if not resent.cuts or not resent.recognized:
        resent.complaints.append("no receipt was ever lost: nothing was tried")
    promised = Promised(number="P7", what="a prompt that is sent again runs once")
    return [promised.judged(resent.complaints, str(resent))]


def ask_over_faulty_network(plan: Plan, server: Restartable, *, prompts: int, kills: int) -> Resent:
    resent = Resent()
    server.start()
    asyncio.run(_ask_all(plan, server, resent, prompts=prompts, kills=kills))
    on_the_wire, refused = records_on_the_wire(server.port)
    in_the_files, unreadable = records_in_the_files(server.data_dir)
    resent.complaints += [*refused, *unreadable]
    for where, records in (("on the wire", on_the_wire), ("in the files", in_the_files)):
        resent.complaints += [f"{where}: {complaint}" for complaint in _judge(resent, records)]
    return resent


async def _ask_all(
    plan: Plan, server: Restartable, resent: Resent, *, prompts: int, kills: int
) -> None:
    progress = Progress("P7 prompts", prompts)
    async with FaultyNetwork(plan.chance("road"), target=server.port) as road:
        road.smooth = True
        async with connect(road.url) as client:
            rooms = [(await client.new()).session_id for _ in range(_ROOMS)]
        road.smooth = False

        async def work(number: int) -> None:
            name = f"client {number}"
            async with connect(road.url, reconnect=IMPATIENT) as client:
                for place in range(number, prompts, _CLIENTS):
                    await _ask(client, rooms[number % _ROOMS], f"{name} asks {place}", resent)
                    progress.step()

        killer = asyncio.create_task(_kill_often(server, road, resent, kills, prompts))
        await asyncio.gather(*(work(number) for number in range(min(_CLIENTS, prompts))))
        await killer
        if plan.sabotage:
            async with connect(road.url, reconnect=IMPATIENT) as client:
                await _ask(client, rooms[0], resent.asked[0], Resent())
        resent.cuts = road.cuts
    progress.end()


async def _ask(client: Client, room: str, text: str, resent: Resent) -> None:
    resent.asked.append(text)
    async with client.ask(text, session_id=room) as turn:
        resent.recognized += bool(turn.receipt.duplicate)
        async for _ in turn:
            pass
        try:
            turn.raise_unless_completed()
        except TurnInterrupted:
            resent.interrupted += 1
        resent.answers[turn.receipt.turn_id] = turn.text


async def _kill_often(
    server: Restartable, road: FaultyNetwork, resent: Resent, kills: int, prompts: int
) -> None:
    for number in range(1, kills + 1):
        while len(resent.answers) < number * prompts // (kills + 1):
            await asyncio.sleep(0.005)
        await kill_and_start(server, road)
        resent.kills += 1


async def kill_and_start(server: Restartable, road: FaultyNetwork) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    road.target = server.port


def _judge(resent: Resent, records: Records) -> list[str]:
    entries = [entry for record in records.values() for entry in record]
    prompts = Counter(entry["content"] for entry in entries if entry["kind"] == "model_input")
    answers = {
        entry["turn_id"]: entry["content"] for entry in entries if entry["kind"] == "model_output"
    }
    return [
        *(f"lost: {text!r}" for text in resent.asked if not prompts[text]),
        *(f"{text!r} ran {times} times" for text, times in prompts.items() if times > 1),
        *(
            f"turn {turn_id} was told as {text!r} and is {answers.get(turn_id)!r}"
            for turn_id, text in resent.answers.items()
            if answers.get(turn_id, "") != text
        ),
    ]
