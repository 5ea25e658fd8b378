"""B23: a whole turn of a server whose conversations are in Redis, and what a second server brings.

Every command is on Redis's disk before it is answered (`appendfsync always`), so that what is
acknowledged is as safe as in files. The servers' own CPU time is compared, in the same rounds: with
Redis beside files, and of the busier of two servers beside one alone, for the same number of
clients. The model answers at once. Redis, the clients and the servers share this machine's
processors, so the rate of two servers means nothing here. MONITOR counts the commands of a turn.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tests.support.redis_server import RedisServer, find_redis_server

from benchmarks.measuring import alternate
from benchmarks.processes import ROOT, Program, server
from benchmarks.scratch import Plan
from benchmarks.turn_load import FIRST_TURNS, cost_of_turns
from benchmarks.verdicts import Question, Verdict
from benchmarks.whole_turn import SETTINGS

CLIENTS = 16
TURNS = 512
"""In each round, of all clients together."""
COUNTED_TURNS = 50
RATIO_MAX = 2.0
GAIN_MIN = 1.6
TEXT = "hello world"


def redis_turns(plan: Plan) -> list[Verdict]:
    if find_redis_server() is None:
        return [Question(number="B23", what="turn with Redis").skipped("there is no redis-server")]
    with ExitStack() as stack:
        redis = RedisServer(plan.new_path("redis"), appendfsync="always").start()
        stack.callback(redis.kill)
        history = {"id": "team", "backend": {"type": "redis", "url": redis.url}}
        settings = {**SETTINGS, "histories": [history]}

        def start(name: str, chosen: Mapping[str, object]) -> Program:
            path = plan.new_path(name)
            return stack.enter_context(server(path, settings={**chosen}, python_path=ROOT))

        files = start("files", SETTINGS)
        one, two = start("one", settings), start("two", settings)
        several = plan.sized(CLIENTS, smoke=4)
        commands = _commands(plan, redis, one)  # before others, whose leases are renewed
        return [
            *(_beside_files(plan, one, files, clients) for clients in (1, several)),
            _gain(plan, one, two, several),
            commands,
        ]


def _beside_files(plan: Plan, redis: Program, files: Program, clients: int) -> Verdict:
    turns = _turns(plan, clients)

    def cpu_of(program: Program) -> Callable[[], float]:
        return lambda: cost_of_turns(program, TEXT, clients=clients, turns=turns).cpu_seconds

    rounds = alternate({"Redis": cpu_of(redis), "files": cpu_of(files)}, rounds=plan.rounds())
    what = f"turn with Redis, {clients} client{'s' * (clients > 1)}, server CPU"
    return Question(number="B23", what=what).at_most(
        RATIO_MAX,
        rounds.ratio("Redis", "files"),
        unit="× files",
        details=rounds.summary("Redis", "files", unit="ms", per_unit=1e3),
    )


def _gain(plan: Plan, one: Program, two: Program, clients: int) -> Verdict:
    """Turns for each CPU second of the busier server: its processor is full first."""
    turns = _turns(plan, clients)

    def alone() -> float:
        return 1 / cost_of_turns(one, TEXT, clients=clients, turns=turns).cpu_seconds

    def both() -> float:
        with ThreadPoolExecutor(2) as threads:
            running = [
                threads.submit(cost_of_turns, each, TEXT, clients=clients // 2, turns=turns)
                for each in (one, two)
            ]
            costs = [each.result().cpu_seconds for each in running]
        return 2 / max(costs)

    rounds = alternate({"two": both, "one": alone}, rounds=plan.rounds())
    return Question(number="B23", what=f"two servers, {clients} clients").at_least(
        GAIN_MIN,
        rounds.ratio("two", "one"),
        unit="× one",
        details=rounds.summary("two", "one", unit="turns per CPU second"),
    )


def _turns(plan: Plan, clients: int) -> int:
    return plan.sized(max(32, TURNS // clients), smoke=1)


@dataclass(slots=True)
class _Monitored:
    """The commands of all clients; those that scripts run are counted apart."""

    sent: Counter[str] = field(default_factory=Counter)
    in_scripts: int = 0


def _commands(plan: Plan, redis: RedisServer, program: Program) -> Verdict:
    turns = plan.sized(COUNTED_TURNS, smoke=1)
    with _monitored(redis) as found:
        cost_of_turns(program, TEXT, clients=1, turns=turns)
    count = turns + FIRST_TURNS
    each = ", ".join(f"{name} {number / count:.2g}" for name, number in found.sent.most_common(8))
    return Question(number="B23", what="commands to Redis of a turn").without_goal(
        found.sent.total() / count,
        unit="commands",
        details=f"{each}; in scripts {found.in_scripts / count:.3g}",
    )


@contextmanager
def _monitored(redis: RedisServer) -> Iterator[_Monitored]:
    found, last = _Monitored(), "the last of them"
    with redis.client() as client, client.monitor() as monitor:

        def read() -> None:
            for command in monitor.listen():
                assert command is not None
                words = command["command"].split(" ")
                if last in command["command"]:
                    return
                if command["client_type"] == "lua":
                    found.in_scripts += 1
                else:
                    found.sent[words[0]] += 1

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield found
        finally:
            redis.call("ECHO", last)
            reader.join()
