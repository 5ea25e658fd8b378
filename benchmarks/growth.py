"""B17: what things cost when there is more of everything, and how fast the cost grows.

A row is a curve: the server's CPU time of one thing (or its memory) against the number of
connections, conversations, entries, attached clients, the length of an answer, or, with a
provider over HTTP, the turns in the context and the tools offered. The exponent is fitted by
least squares through the logarithms: 0 means that the cost stays, 1 that it grows as the
number does. Each row says what it must be; the goal leaves `SLACK` above it, for a machine
that is not quiet. Where a constant part hides the growth the fit is smaller than the truth,
so the exponent between the two largest points is told beside it.

A history of 1,000,000 entries takes a minute more, and is measured with `--full`. The curves
are drawn into `growth.svg`, in the directory named by `--plots`.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.conversations import FIRST_DAY, write_conversation
from benchmarks.fan_out_load import listen
from benchmarks.measuring import figure
from benchmarks.plots import Curve, Panel, draw
from benchmarks.processes import OFFLINE, Program, peer, server
from benchmarks.progress import tick
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict
from benchmarks.wire import (
    ATTACH,
    HISTORY_REQUEST,
    PING,
    PONG,
    PROMPT,
    SESSION_LIST,
    STATUS,
    TURN_FINISHED,
    Caller,
    encode,
    wait_until_known,
)

SLACK = 0.25
TIMES = 5
"""Each point is the median of as many measurements."""
PAGE = 10
TOKENS = 200
BEFORE_READING = 20
CONTENT_BYTES = 20
CONNECTIONS = (1, 10, 100, 1_000, 5_000)
CONVERSATIONS = (10, 100, 1_000, 10_000)
ENTRIES = (10, 100, 1_000, 10_000, 100_000)
ENTRIES_FULL = (*ENTRIES, 1_000_000)
OPENED_ENTRIES = 10_000
CLIENTS = (1, 10, 100, 1_000)
ANSWER_BYTES = (1_000, 10_000, 100_000, 1_000_000)
CONTEXTS = (10, 100, 400, 1_600)
TOOLS_OFFERED = (1, 10, 100)
TOOL = {
    "description": "Looks something up, and says what it has found.",
    "parameters": {"type": "object", "properties": {"words": {"type": "string"}}},
}
HTTP = "vendor/burst"
ROOM: dict[str, Any] = {
    "limits": {"connections_max": 6_000, "connections_per_user_max": 6_000},
}
WINDOW: dict[str, Any] = {"models": {"offline/echo": {"context_tokens": 4_000_000}}}
"""For prompts and answers of a megabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One curve: what is measured, how it must grow, and the points."""

    what: str
    must: int
    unit: str
    points: Sequence[tuple[int, float]]
    fitted_from: int = 0
    """Where the curve that must hold begins, if there are two points from there on."""

    @property
    def exponent(self) -> float:
        fitted = [point for point in self.points if point[0] >= self.fitted_from]
        if len(fitted) < 2:
            fitted = list(self.points)
        places = [(math.log(x), math.log(y)) for x, y in fitted]
        middle_x = sum(x for x, _ in places) / len(places)
        middle_y = sum(y for _, y in places) / len(places)
        rise = sum((x - middle_x) * (y - middle_y) for x, y in places)
        return rise / sum((x - middle_x) ** 2 for x, _ in places)

    @property
    def last_exponent(self) -> float:
        (x1, y1), (x2, y2) = self.points[-2:]
        return math.log(y2 / y1) / math.log(x2 / x1)

    @property
    def curve(self) -> Curve:
        where = f" from {self.fitted_from:,}" if self.fitted_from else ""
        name = f"{self.what}: n^{self.exponent:.2f}{where}"
        return Curve(name=name, unit=self.unit, points=self.points)

    def verdict(self, of: str) -> Verdict:
        (first_x, first), (last_x, last) = self.points[0], self.points[-1]
        details = (
            f"{figure(first)} {self.unit} at {first_x:,}, {figure(last)} at {last_x:,}; "
            f"last step n^{self.last_exponent:.2f}; must be {MUST[self.must]}"
        )
        if self.fitted_from:
            details += f" from {self.fitted_from:,} on"
        question = Question(number="B17", what=f"{self.what}, by {of}")
        limit = self.must + SLACK
        return question.at_most(limit, self.exponent, unit="exponent", details=details)


MUST = {0: "n^0: it stays", 1: "n^1: in proportion"}


def growth(plan: Plan) -> list[Verdict]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found: dict[str, list[Growth]] = {}
    for of, measure in {
        "connections": _connections,
        "conversations": _conversations,
        "entries of a history": _entries,
        "attached clients": _clients,
        "bytes of an answer": _answers,
        "turns in the context": _contexts,
        "tools offered": _tools,
    }.items():
        found[of] = measure(plan)
        tick()
    panels = [Panel(x=of, curves=[each.curve for each in curves]) for of, curves in found.items()]
    directory = plan.plots or plan.scratch
    (directory / "growth.svg").write_text(draw(panels), encoding="utf-8")
    return [curve.verdict(of) for of, curves in found.items() for curve in curves]


def _xs(plan: Plan, usual: Sequence[int]) -> Sequence[int]:
    return usual[:2] if plan.smoke else usual


# The seven


def _connections(plan: Plan) -> list[Growth]:
    pings: list[tuple[int, float]] = []
    turns: list[tuple[int, float]] = []
    sizes: list[tuple[int, float]] = []
    remote: list[tuple[int, float]] = []
    with _server_with_vendor(plan, "connections") as program, ExitStack() as stack:
        asking = stack.enter_context(Caller(program.port))
        _turn(asking, "warm up")
        _ping(asking)
        empty = program.resident_bytes()
        there = 1
        for connections in _xs(plan, CONNECTIONS):
            for _ in range(connections - there):
                stack.enter_context(Caller(program.port))
            there = connections
            pings.append((connections, _cpu(program, plan, lambda: _ping(asking), 500) * 1e6))
            turns.append((connections, _cpu(program, plan, lambda: _turn(asking, "hi"), 20) * 1e3))
            over_http = partial(_turn, asking, "hi", model=HTTP)
            remote.append((connections, _cpu(program, plan, over_http, 20) * 1e3))
            if connections >= 100 or plan.smoke:  # fewer are lost in what is allocated ahead
                grown = program.resident_bytes() - empty
                sizes.append((connections, max(4_096, grown) / 1024))
    return [
        Growth(what="PING", must=0, unit="µs", points=pings),
        Growth(what="turn", must=0, unit="ms", points=turns),
        Growth(what="turn over HTTP", must=0, unit="ms", points=remote),
        Growth(what="memory", must=1, unit="KiB", points=sizes),
    ]


def _conversations(plan: Plan) -> list[Growth]:
    lists: list[tuple[int, float]] = []
    turns: list[tuple[int, float]] = []
    remote: list[tuple[int, float]] = []
    data_dir = plan.new_path("conversations")
    written = 0
    for conversations in _xs(plan, CONVERSATIONS):
        for number in range(written, conversations):
            at = FIRST_DAY + timedelta(minutes=number)
            write_conversation(data_dir, f"c{number:05}", 2, at=at)
        written = conversations
        with (
            _server_with_vendor(plan, "conversations", data_dir) as program,
            Caller(program.port) as caller,
        ):
            while caller.request(STATUS)["conversations"]["stored"] < conversations:
                time.sleep(0.1)
            ask = partial(caller.request, SESSION_LIST, {"limit": PAGE})
            lists.append((conversations, _cpu(program, plan, ask, 50) * 1e3))
            turn = partial(_turn, caller, "hi")
            turns.append((conversations, _cpu(program, plan, turn, 20) * 1e3))
            over_http = partial(_turn, caller, "hi", model=HTTP)
            remote.append((conversations, _cpu(program, plan, over_http, 20) * 1e3))
        written += 1  # the one of the turns
    return [
        Growth(what=f"list of {PAGE}", must=0, unit="ms", points=lists),
        Growth(what="turn", must=0, unit="ms", points=turns),
        Growth(what="turn over HTTP", must=0, unit="ms", points=remote),
    ]


def _entries(plan: Plan) -> list[Growth]:
    found: dict[str, list[tuple[int, float]]] = {"page of 20": [], "turn": [], "open again": []}
    for entries in _xs(plan, ENTRIES_FULL if plan.full else ENTRIES):
        data_dir = plan.new_path("entries")
        path = write_conversation(data_dir, "long", entries, content_bytes=CONTENT_BYTES)
        # A file that nobody knew is read whole, once.
        with server(data_dir) as program, Caller(program.port, patience=1_800) as caller:
            wait_until_known(caller)
        with server(data_dir, settings=ROOM) as program, Caller(program.port) as caller:
            _turn(caller, "warm up")
            before = program.cpu_seconds()
            caller.request(ATTACH, {"session_id": "long"})
            found["open again"].append((entries, (program.cpu_seconds() - before) * 1e3))
            ask = partial(caller.request, HISTORY_REQUEST, {"session_id": "long"})
            found["page of 20"].append((entries, _cpu(program, plan, ask, 50) * 1e3))
            _turn(caller, "hi")
            turn = partial(_turn, caller, "hi")
            found["turn"].append((entries, _cpu(program, plan, turn, 20) * 1e3))
        path.unlink()
    return [
        Growth(
            what=what,
            must=0,
            unit="ms",
            points=points,
            # Opening reads back as far as a model may be shown; a shorter one is read whole.
            fitted_from=OPENED_ENTRIES if what == "open again" else 0,
        )
        for what, points in found.items()
    ]


def _clients(plan: Plan) -> list[Growth]:
    points: list[tuple[int, float]] = []
    prompt = encode(PROMPT, 100, {"text": "a " * TOKENS})
    with server(plan.new_path("clients"), settings=ROOM) as program:
        for clients in _xs(plan, CLIENTS):
            with ExitStack() as stack:
                callers = [stack.enter_context(Caller(program.port)) for _ in range(clients)]
                _turn(callers[0], "warm up")
                for number, caller in enumerate(callers[1:]):
                    caller.request(ATTACH, {"session_id": callers[0].welcome["session_id"]})
                    if number % BEFORE_READING == 0:  # everybody is told of everybody
                        for listener in callers[: number + 2]:
                            listener.drain()
                sockets = [caller.sock for caller in callers]

                def turn() -> None:
                    sockets[0].sendall(prompt)  # noqa: B023
                    listen(sockets, map(_UntilFinished, callers).__next__)  # noqa: B023

                for caller in callers:
                    caller.drain()
                turn()
                points.append((clients, _cpu(program, plan, turn, 3) * 1e3))
    return [Growth(what=f"turn of {TOKENS} tokens", must=1, unit="ms", points=points)]


class _UntilFinished:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def receive(self, data: bytes) -> bool:
        return any(frame.type == TURN_FINISHED for frame in self._caller.take(data))


def _answers(plan: Plan) -> list[Growth]:
    points: list[tuple[int, float]] = []
    with server(plan.new_path("answers"), settings=WINDOW) as program:
        with Caller(program.port) as caller:
            _turn(caller, "warm up")
        for size in _xs(plan, ANSWER_BYTES):

            def turn() -> None:  # in a conversation of its own: a context is no part of it
                with Caller(program.port) as caller:
                    _turn(caller, "word " * (size // 5))  # noqa: B023

            points.append((size, _cpu(program, plan, turn, 2) * 1e3))
    return [Growth(what="turn", must=1, unit="ms", points=points)]


def _contexts(plan: Plan) -> list[Growth]:
    points: list[tuple[int, float]] = []
    with (
        _server_with_vendor(plan, "contexts") as program,
        Caller(program.port) as caller,
    ):
        there = 0
        for turns in _xs(plan, CONTEXTS):
            for _ in range(turns - there):
                _turn(caller, "word " * 60)
            turn = partial(_turn, caller, "hi", model=HTTP)
            turn()  # what is new since the last one
            points.append((turns, _cpu(program, plan, turn, 20) * 1e3))
            there = turns
    return [Growth(what="turn over HTTP", must=0, unit="ms", points=points)]


def _tools(plan: Plan) -> list[Growth]:
    """Tools of the client come with the prompt: reading and checking them is part of the cost."""
    points: list[tuple[int, float]] = []
    with (
        _server_with_vendor(plan, "tools") as program,
        Caller(program.port) as caller,
    ):
        for count in _xs(plan, TOOLS_OFFERED):
            tools = [{**TOOL, "name": f"tool_{number}"} for number in range(count)]
            turn = partial(_turn, caller, "hi", model=HTTP, tools=tools, offer="client")
            turn()
            points.append((count, _cpu(program, plan, turn, 20) * 1e3))
    return [Growth(what="turn over HTTP", must=1, unit="ms", points=points)]


@contextmanager
def _server_with_vendor(plan: Plan, name: str, data_dir: Path | None = None) -> Iterator[Program]:
    """A server with `offline/echo`, and with a vendor over HTTP as `HTTP`."""
    with peer("streaming_vendor", "2") as vendor:
        url = f"http://127.0.0.1:{vendor.port}/v1"
        settings = {
            "providers": [
                *OFFLINE["providers"],
                {
                    "id": "vendor",
                    "type": "openai",
                    "api": "chat",
                    "base_url": url,
                    "models": ["burst"],
                },
            ],
            "default_model": "offline/echo",
            "models": {model: {"context_tokens": 4_000_000} for model in (HTTP, "offline/echo")},
        }
        with server(data_dir or plan.new_path(name), settings=ROOM | settings) as program:
            yield program


# Measuring


def _cpu(program: Program, plan: Plan, work: Callable[[], object], times: int) -> float:
    """The server's CPU seconds of doing it once; the median of several measurements."""
    times = plan.sized(times, smoke=1)
    figures: list[float] = []
    for _ in range(plan.sized(TIMES, smoke=1)):
        before = program.cpu_seconds()
        for _ in range(times):
            work()
        figures.append((program.cpu_seconds() - before) / times)
    return median(figures)


def _ping(caller: Caller) -> None:
    caller.sock.sendall(encode(PING, 1))
    caller.until(PONG)


def _turn(caller: Caller, text: str, **fields: object) -> None:
    caller.request(PROMPT, {"text": text, **fields})
    if b'"completed"' not in caller.until(TURN_FINISHED).payload:
        raise ValueError("the turn did not complete")
