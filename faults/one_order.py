"""P8: many clients prompt one conversation at once: no prompt is lost, and there is one order.

All of them also listen, through a proxy that sometimes cuts connections. What each received, from
the entry at which it attached, must be the record itself, entry by entry.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.support.faulty_network import FaultyNetwork
from tests.support.fork_server import ForkServer

from faults.plan import Plan
from faults.progress import Progress
from faults.resending import IMPATIENT, Restartable
from faults.results import Promised, Result
from faults.serving import ForkedServer, clean_environment
from faults.stored import records_in_the_files
from nplt_client import Client, EntryAdded, EventFeed, LimitExceeded, connect

_BUSY_SECONDS = 0.02


@dataclass(slots=True, kw_only=True)
class Crowd:
    asked: list[str] = field(default_factory=list)
    answered: int = 0
    received: list[list[tuple[int, str]]] = field(default_factory=list)
    """For each client: the number and id of every entry, in the order of arrival."""
    refused: int = 0
    cuts: int = 0
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        prompts = f"{len(self.asked):,} prompts of {len(self.received)} clients"
        return (
            f"{prompts}, {self.answered:,} answered, "
            f"{sum(map(len, self.received)):,} entries heard; {self.cuts:,} cuts, "
            f"{self.refused:,} times asked again because the queue was full"
        )


def one_order(plan: Plan) -> list[Result]:
    with (
        ForkServer(clean_environment()) as fork_server,
        ForkedServer(fork_server, plan.new_path("crowd") / "data") as server,
    ):
        crowd = talk_all_at_once(plan, server, clients=50, prompts_each=4 if plan.quick else 20)
    if not crowd.cuts:
        crowd.complaints.append("no connection was ever cut: nothing was tried")
    promised = Promised(number="P8", what="many clients in one conversation: one order for all")
    return [promised.judged(crowd.complaints, str(crowd))]


def talk_all_at_once(plan: Plan, server: Restartable, *, clients: int, prompts_each: int) -> Crowd:
    crowd = Crowd()
    server.start()
    asyncio.run(_talk(plan, server, crowd, clients=clients, prompts_each=prompts_each))
    records, unreadable = records_in_the_files(server.data_dir)
    crowd.complaints += unreadable
    (record,) = records.values()
    if plan.sabotage:
        record[-2:] = reversed(record[-2:])
    _judge(crowd, record)
    return crowd


async def _talk(
    plan: Plan, server: Restartable, crowd: Crowd, *, clients: int, prompts_each: int
) -> None:
    progress = Progress("P8 prompts", clients * prompts_each)
    is_over = asyncio.Event()
    road = FaultyNetwork(
        plan.chance("road"),
        target=server.port,
        up_bytes=(400, 100_000),
        down_bytes=(2_000, 2_000_000),
    )
    async with road, connect(f"nplt://127.0.0.1:{server.port}") as host:
        room = (await host.new()).session_id

        async def take_part(number: int) -> None:
            async with connect(road.url, reconnect=IMPATIENT) as client:
                await client.attach(room)
                feed = client.events()
                received: list[tuple[int, str]] = []
                crowd.received.append(received)
                listening = asyncio.create_task(_listen(feed, received))
                for place in range(prompts_each):
                    await _ask(client, f"client {number} asks {place}", crowd)
                    progress.step()
                if len(crowd.asked) == crowd.answered == clients * prompts_each:
                    is_over.set()
                await is_over.wait()
                head = (await host.attach(room)).head_seq
                while not received or received[-1][0] < head:
                    await asyncio.sleep(0.01)
                listening.cancel()

        await asyncio.gather(*(take_part(number) for number in range(clients)))
        crowd.cuts = road.cuts
    progress.end()


async def _listen(feed: EventFeed, received: list[tuple[int, str]]) -> None:
    async for event in feed:
        if isinstance(event, EntryAdded):
            received.append((int(str(event.entry["seq"])), str(event.entry["id"])))


async def _ask(client: Client, text: str, crowd: Crowd) -> None:
    crowd.asked.append(text)
    while True:
        try:
            answer = await client.ask_text(text, message_id=text.replace(" ", "-"))
        except LimitExceeded:
            crowd.refused += 1
            await asyncio.sleep(_BUSY_SECONDS)
            continue
        crowd.answered += 1
        if answer != text:
            crowd.complaints.append(f"{text!r} was answered with {answer!r}")
        return


def _judge(crowd: Crowd, record: list[dict[str, Any]]) -> None:
    prompts = Counter(entry["content"] for entry in record if entry["kind"] == "model_input")
    crowd.complaints += [f"lost: {text!r}" for text in crowd.asked if not prompts[text]]
    crowd.complaints += [f"{text!r} is there twice" for text in prompts if prompts[text] > 1]
    order = [(entry["seq"], entry["id"]) for entry in record]
    for number, received in enumerate(crowd.received):
        if received != order[len(order) - len(received) :]:
            first = next(
                a for a, b in zip(received, order[-len(received) :], strict=False) if a != b
            )
            crowd.complaints.append(f"client {number} heard another order, from entry {first}")
