"""SOAK: twenty clients send every request for half an hour; then nothing of it is left.

A warm-up comes first, in which the clients do all that they do later. Then they leave, the idle
conversations are closed, and memory, descriptors, threads, tasks and objects are measured. After
the soak the same is done again: what is above the first measurement by more than a tenth has
leaked. What stays the same however many visits there were is a high-water mark, which the warm-up
has too; it is long enough for the caches of SQLite and the free lists of the allocators to fill.

A visit is one connection with a purpose: the tour sends every structured request, a guest of the
plain dialect sends its own; others talk in a room that all of them share, get answers from
emulated vendors, or vanish in the middle of something. Two requests are sent to be refused.

The curve is drawn into `soak.svg`, in the directory named by `--plots`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.plots import Curve, Panel, draw
from tests.support.raw_client import (
    APPROVAL,
    APPROVAL_REQUEST,
    ATTACH,
    CANCEL,
    CHAT_TEXT,
    CLEAR_REQUEST,
    CLIENT_NOTE,
    COMPACT,
    CONTEXT_REQUEST,
    DETACH,
    ERROR,
    FILE_DATA,
    FILE_GET,
    FILE_METADATA,
    HEADER,
    HELLO,
    HISTORY_REQUEST,
    IMPORT,
    MODEL_SWITCH,
    PING,
    PROMPT,
    REDACT,
    REPAIR,
    ROLLBACK,
    SEARCH,
    SEEN,
    SESSION_DELETE,
    SESSION_FORK,
    SESSION_LIST,
    SESSION_NEW,
    SESSION_SWITCH,
    SESSION_UPDATE,
    STATUS,
    TEXT_DELTA,
    TOOLS,
    TURN_FINISHED,
    USAGE,
    WATCH,
    Closed,
    Frame,
    RawClient,
)
from tests.vendors import Answer, Call, Cut, Stall, Text, emulator_in_thread
from tests.vendors.answers import echo

from faults.counted_server import ask_for_counts
from faults.plan import Plan
from faults.progress import Progress
from faults.results import Promised, Result
from faults.serving import PATIENCE_SECONDS, ServerProgram, newest_log
from nplt_protocol.codes import PLAIN_REQUESTS
from nplt_protocol.messages import REQUEST_TYPES

_CLIENTS = 20
_QUICK_SECONDS = (15.0, 45.0)
"""Of the warm-up and of the soak."""
_WHOLE_SECONDS = (300.0, 1_800.0)
_SECONDS_VARIABLE = "SOAK_SECONDS"
"""Names other times, such as `15,45`, which show a slope without waiting for half an hour."""
_VISIT_SECONDS = float(os.environ.get("SOAK_VISIT_SECONDS", "4"))
"""From the start of one visit of a client to that of its next."""
_ROOM_VISITS = 120
"""After so many visits the shared room is a new conversation. A long one takes more memory each
time that it is opened, which is no leak."""
_IDLE_SECONDS = 2
_CALM_SECONDS = 12.0
_SAMPLES = 120
_KEY = "sk-emulated"
_SLACK = 0.10
_FEW = {"descriptors": 2, "threads": 2, "tasks": 2}
"""A tenth of a small number is less than one."""
_LATE = 9
"""Events: by then each API has said a few words of its answer."""
_VENDORS = ("chat/gpt-5.6", "responses/gpt-5.6", "messages/claude-opus-5-5")
_DOCUMENT = {
    "messages": [
        {"role": "user", "content": "What is kept?"},
        {"role": "assistant", "content": "This."},
    ]
}
_MCP_SERVER = Path(__file__).parents[1] / "tests" / "support" / "odd_mcp_server.py"
_MCP_TOOLS = json.dumps(
    [{"name": "echo", "inputSchema": {"type": "object"}, "description": "Repeats."}]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the server holds at a moment. `objects` are counted only while it is quiet."""

    memory: int
    descriptors: int
    threads: int
    tasks: int
    objects: int = 0
    by_kind: Mapping[str, Counter[str]] = field(default_factory=dict)
    """Tasks by where they are, objects by type, memory by who holds it."""

    def __str__(self) -> str:
        return (
            f"{self.memory / 2**20:.0f} MiB, {self.descriptors} descriptors, "
            f"{self.threads} threads, {self.tasks} tasks"
            + (f", {self.objects:,} objects" if self.objects else "")
        )


MEASURED = ("memory", "descriptors", "threads", "tasks", "objects")


def soak(plan: Plan) -> list[Result]:
    warm_up, seconds = _QUICK_SECONDS if plan.quick else _WHOLE_SECONDS
    if other := os.environ.get(_SECONDS_VARIABLE):
        warm_up, seconds = map(float, other.split(","))
    place = plan.new_path("soak")
    key_file = place / "key"
    key_file.write_text(_KEY)
    key_file.chmod(0o600)
    complaints: list[str] = []
    with emulator_in_thread(_script, key=_KEY) as vendors, ExitStack() as stack:
        settings = _settings(vendors.openai_url, vendors.anthropic_url, key_file)
        server = ServerProgram(place / "data", module="faults.counted_server", settings=settings)
        stack.enter_context(server)
        server.start()
        samples = Samples(server)
        crowd = Crowd(server.port, plan)
        with crowd.visiting():
            samples.take_for(warm_up, every=seconds / _SAMPLES)
        before, warm_up_visits = samples.take_quiet(), crowd.visits
        with crowd.visiting():
            samples.take_for(seconds, every=seconds / _SAMPLES)
        if plan.sabotage:  # connections that nobody closes
            for _ in range(_CLIENTS):
                client = stack.enter_context(RawClient(server.port, timeout=PATIENCE_SECONDS))
                client.hello()
        after = samples.take_quiet(connections=_CLIENTS if plan.sabotage else 0)
        log = newest_log(server.data_dir)
    complaints += _leaks(before, after, crowd.visits - warm_up_visits)
    complaints += crowd.complaints
    complaints += [f"in the log: {line}" for line in log.splitlines()[:5]]
    if plan.plots is not None:
        (plan.plots / "soak.svg").write_text(draw([samples.panel(before)]), encoding="utf-8")
    today = (
        f"{crowd.visits - warm_up_visits:,} visits, {sum(crowd.sent.values()):,} requests of "
        f"{len(crowd.sent)} kinds, {crowd.refused:,} refused, in {seconds:g} s: "
        f"from {before} to {after}"
    )
    return [Promised(number="SOAK", what="nothing leaks").judged(complaints, today)]


def _settings(openai_url: str, anthropic_url: str, key_file: Path) -> dict[str, object]:
    openai = {"type": "openai", "base_url": openai_url, "models": ["gpt-5.6"]}
    anthropic = {"type": "anthropic", "base_url": anthropic_url, "models": ["claude-opus-5-5"]}
    key = {"api_key_file": str(key_file)}
    command = [sys.executable, "-I", "-S", str(_MCP_SERVER), _MCP_TOOLS]
    return {
        "providers": [
            {"id": "offline", "type": "offline", "words_per_second": 0},
            {"id": "chat", "api": "chat", **openai, **key},
            {"id": "responses", "api": "responses", **openai, **key},
            {"id": "messages", **anthropic, **key},
        ],
        "default_model": "offline/echo",
        "mcp_servers": {"odd": {"command": command, "policy": "allow"}},
        "tools": {"sys_monitor": "ask"},
        "limits": {
            "idle_conversation_seconds_max": _IDLE_SECONDS,
            "turns_per_user_max": 64,
            "gap_seconds_max": 3,
            "first_token_seconds_max": 3,
            "approval_seconds_max": 3,
        },
        "log_level": "error",
    }


def _script(call: Call) -> Answer:
    answer = echo(call)
    said = "".join(part.text for part in answer.parts if isinstance(part, Text))
    fault = Stall(after=_LATE) if "stall" in said else Cut(after=_LATE) if "cut" in said else None
    return Answer(parts=answer.parts, fault=fault)


def _leaks(before: State, after: State, visits: int) -> Iterator[str]:
    for what in MEASURED:
        first, last = getattr(before, what), getattr(after, what)
        if last > first * (1 + _SLACK) + _FEW.get(what, 0):
            yield f"{what}: {first:,} after the warm-up, {last:,} after {visits:,} visits"
            if what in before.by_kind:
                more = (after.by_kind[what] - before.by_kind[what]).most_common(8)
                yield "of these: " + ", ".join(f"{name} +{count:,}" for name, count in more)


class Samples:
    """The states of a server, by the seconds since the first one."""

    def __init__(self, server: ServerProgram) -> None:
        self._server = server
        self._begun = time.monotonic()
        self.states: list[tuple[int, State]] = []

    def take(self, *, objects: bool = False) -> State:
        pid = self._server.pid
        counts = ask_for_counts(pid, self._server.data_dir, objects=objects)
        state = State(
            memory=_resident_bytes(pid),
            descriptors=sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
            threads=sum(1 for _ in Path(f"/proc/{pid}/task").iterdir()),
            tasks=counts.tasks.total(),
            objects=counts.objects.total(),
            by_kind={
                "tasks": counts.tasks,
                "objects": counts.objects,
                "memory": counts.memory + counts.allocations,
            },
        )
        self.states.append((int(time.monotonic() - self._begun), state))
        return state

    def take_for(self, seconds: float, *, every: float) -> None:
        progress = Progress("SOAK samples", round(seconds / every))
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(every, left))
            progress.step(str(self.take()))
        progress.end()

    def take_quiet(self, *, connections: int = 0) -> State:
        """Waits until nothing happens any more, and then until the threads of a pool that have
        nothing to do are over: each request ends those that were idle for ten seconds."""
        begun = calm_since = time.monotonic()
        while (now := time.monotonic()) < begun + PATIENCE_SECONDS:
            if _is_busy(self._server.port, connections):
                calm_since = now
            elif now - calm_since > _CALM_SECONDS:
                break
            time.sleep(1)
        time.sleep(2 * _IDLE_SECONDS)
        return self.take(objects=True)

    def panel(self, unit: State) -> Panel:
        """All curves, as multiples of the state after the warm-up."""
        units = {"memory": (2**20, "MiB"), "descriptors": (1, ""), "threads": (1, "")}
        curves: list[Curve] = []
        for what in MEASURED[:4]:
            divisor, name = units.get(what, (1, ""))
            points = [(at, getattr(state, what) / divisor) for at, state in self.states]
            one = getattr(unit, what) / divisor
            curves.append(Curve(name=what, unit=name, points=points, one=one))
        return Panel(x="seconds", curves=curves, linear=True)


def _resident_bytes(pid: int) -> int:
    book = Path(f"/proc/{pid}/smaps_rollup").read_text()
    line = next(line for line in book.splitlines() if line.startswith("Rss:"))
    return int(line.split()[1]) * 1024


def _is_busy(port: int, connections: int) -> bool:
    with RawClient(port, timeout=PATIENCE_SECONDS) as client:
        client.hello()
        status = client.request(STATUS).json
    mine = 1 + connections
    is_open: int = sum(status["conversations"]["open"].values())
    connected: int = status["connections"]
    return is_open > mine or connected > mine


class Crowd:
    """Twenty clients in threads, and what they sent and found."""

    def __init__(self, port: int, plan: Plan) -> None:
        self.port = port
        self.visits = 0
        self.sent: Counter[tuple[str, int]] = Counter()
        """Dialect and type of each request."""
        self.refused = 0
        self._plan = plan
        self._failures: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._room = ""

    @property
    def complaints(self) -> list[str]:
        expected = {("structured", int(code)) for code in REQUEST_TYPES}
        expected |= {("plain", int(code)) for code in PLAIN_REQUESTS}
        missing = expected - set(self.sent)
        found = [f"{count} × {failure}" for failure, count in self._failures.most_common()]
        if missing:
            names = ", ".join(f"{dialect} {code:#04x}" for dialect, code in sorted(missing))
            found.append(f"never sent: {names}")
        return found

    @contextmanager
    def visiting(self) -> Iterator[None]:
        self._room = self._new_room()
        is_over = threading.Event()
        threads = [
            threading.Thread(target=self._visit_until, args=(is_over, number))
            for number in range(_CLIENTS)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            is_over.set()
            for thread in threads:
                thread.join()

    def _new_room(self) -> str:
        with RawClient(self.port, timeout=PATIENCE_SECONDS) as host:
            host.hello()
            return str(host.request(SESSION_NEW).json["session_id"])

    def _visit_until(self, is_over: threading.Event, number: int) -> None:
        chance = self._plan.chance("soak", number, self.visits)
        is_over.wait(number / _CLIENTS * _VISIT_SECONDS)
        kinds: list[Callable[[Visit], None]] = []
        while not is_over.is_set():
            begun = time.monotonic()
            kinds = kinds or chance.sample(_VISITS, len(_VISITS))
            kind = kinds.pop()
            visit = Visit(self.port, self._room, chance)
            try:
                kind(visit)
            except (Closed, OSError, ValueError, KeyError) as error:
                with self._lock:
                    self._failures[f"{kind.__name__}: {type(error).__name__}: {error}"] += 1
            finally:
                visit.client.sock.close()
            with self._lock:
                self.visits += 1
                self.sent += visit.sent
                self.refused += visit.refused
                room_is_full = self.visits % _ROOM_VISITS == 0
            if room_is_full:
                self._room = self._new_room()
            is_over.wait(max(0.0, begun + _VISIT_SECONDS - time.monotonic()))


class Visit:
    """One connection, and the requests that it sends."""

    def __init__(self, port: int, room: str, chance: random.Random) -> None:
        self.client = RawClient(port, timeout=PATIENCE_SECONDS)
        self.room = room
        self.chance = chance
        self.sent: Counter[tuple[str, int]] = Counter()
        self.refused = 0

    def hello(self) -> None:
        self.sent["structured", HELLO] += 1
        self.client.hello({"client": "soak"})

    def request(
        self, type_: int, payload: dict[str, Any] | bytes = b"", *, may_fail: bool = False
    ) -> Any:
        """The reply's JSON, or `None` if the request was refused and that is no fault."""
        self.sent["structured", type_] += 1
        reply = self.client.request(type_, payload)
        if reply.type != ERROR:
            return reply.json if reply.payload.startswith(b"{") else reply.payload
        self.refused += 1
        if not may_fail or reply.json["code"] == "internal":
            raise ValueError(f"request {type_:#04x} was refused: {reply.text}")
        return None

    def prompt(self, text: str, **fields: object) -> str:
        return str(self.request(PROMPT, {"text": text, **fields})["turn_id"])

    def until_over(self, turn_id: str) -> Frame:
        """Waits for the turn's end, and decides the approvals it asks for."""
        while True:
            event = self.client.event(TURN_FINISHED, APPROVAL_REQUEST)
            if event.json["turn_id"] != turn_id:
                continue
            if event.type == TURN_FINISHED:
                return event
            decision = self.chance.choice(("allow", "deny"))
            asked = {"approval_id": event.json["approval_id"], "decision": decision}
            self.request(APPROVAL, asked)

    def ask(self, text: str, **fields: object) -> Frame:
        return self.until_over(self.prompt(text, **fields))

    def upload(self, data: bytes, purpose: str = "attachment") -> str:
        self.client.next_seq += 1
        seq = self.client.next_seq
        self.sent["structured", FILE_METADATA] += 1
        self.sent["structured", FILE_DATA] += 1
        about = {"filename": "notes.txt", "size": len(data), "purpose": purpose}
        self.client.send(FILE_METADATA, seq, about)
        self.client.send(FILE_DATA, seq, data)
        return str(self.client.reply_to(seq).json["file_id"])

    # Plain

    def say(self, type_: int, payload: bytes | str | dict[str, Any] = b"") -> None:
        self.sent["plain", type_] += 1
        self.client.send(type_, 0, payload)

    def hear_text(self) -> str:
        while (frame := self.client.receive()).type != CHAT_TEXT:
            pass
        return frame.text


def _tour(visit: Visit) -> None:
    """Every structured request, once and in order."""
    visit.hello()
    visit.request(PING, b"there?")
    visit.sent["structured", CLIENT_NOTE] += 1
    visit.client.send(CLIENT_NOTE, 0, {"udp_port": 9})
    visit.request(STATUS)
    name = f"tour {visit.chance.randrange(10**9)}"
    here = visit.request(SESSION_NEW, {"name": name, "system": "Be short."})["session_id"]
    visit.request(MODEL_SWITCH, {"model": "offline/echo", "listed": True})
    visit.request(MODEL_SWITCH, {"options": {"temperature": 0.5}})
    visit.ask("one two three")
    visit.ask("!think of it")
    visit.ask("!tool now {}")
    visit.ask('!tool notebook {"action": "write", "text": "seen"}')
    visit.ask('!tool sys_monitor {"metric": "all"}')
    visit.ask('!tool odd__echo {"text": "x"}')
    visit.ask("!fail")
    file_id = visit.upload(b"a line of notes\n" * 2_000)
    visit.ask("what is in it?", attachments=[file_id])
    visit.request(FILE_GET, {"file_id": file_id})
    visit.request(HISTORY_REQUEST, {"limit": 5, "detail": "gist"})
    visit.request(HISTORY_REQUEST, {"view": "entries", "limit": 200})
    visit.request(CONTEXT_REQUEST, {"text": "and now?"})
    visit.request(TOOLS)
    visit.request(USAGE)
    visit.request(SEARCH, {"query": "notes"}, may_fail=True)  # one per user at a time
    visit.request(SESSION_LIST, {"limit": 20})
    visit.request(WATCH, {"limit": 5})
    visit.request(SEEN, {"seq": 3})
    visit.request(WATCH, {"watch": False})
    fork = visit.request(SESSION_FORK, {"name": f"{name}, forked"})["session_id"]
    visit.request(ROLLBACK, {"to_seq": 0})
    visit.request(ROLLBACK, {"redo": True})
    turn_id = visit.prompt("!slow 30 this is cancelled")
    visit.request(CANCEL, {"turn_id": turn_id})
    visit.until_over(turn_id)
    visit.request(COMPACT)
    visit.request(CLEAR_REQUEST)
    visit.request(REDACT, {"seq": 2})
    visit.request(REPAIR)
    visit.request(SESSION_SWITCH, {"session_id": fork})
    visit.ask("in the fork")
    imported = [
        visit.request(IMPORT, {"document": _DOCUMENT})["session_id"],
        visit.request(IMPORT, {"file_id": visit.upload(json.dumps(_DOCUMENT).encode(), "import")})[
            "session_id"
        ],
    ]
    visit.request(SESSION_UPDATE, {"session_id": here, "pinned": True, "name": f"{name}, told"})
    visit.request(ATTACH, {"session_id": visit.room})
    visit.request(DETACH)
    for session_id in {here, fork, *imported}:
        visit.request(SESSION_DELETE, {"session_id": session_id})
    if visit.chance.random() < 0.1:
        visit.request(SESSION_LIST, {"trash": True, "limit": 5})
        visit.request(SESSION_UPDATE, {"session_id": here, "deleted": False})
        visit.request(SESSION_DELETE, {"session_id": here})


def _plain(visit: Visit) -> None:
    """Every request of the plain dialect. Replies are texts; a turn ends with an empty one."""
    visit.client.greeting()
    visit.say(CHAT_TEXT, "hello from version two")
    while visit.hear_text().strip():
        pass
    visit.say(CLIENT_NOTE, {"udp_port": 9})
    for type_, payload in (
        (MODEL_SWITCH, b""),
        (HISTORY_REQUEST, b"5"),
        (SESSION_NEW, b""),
        (CLEAR_REQUEST, b""),
        (SESSION_LIST, b""),
    ):
        visit.say(type_, payload)
        visit.hear_text()
    visit.say(FILE_METADATA, {"filename": "plain.txt", "size": 5})
    visit.say(FILE_DATA, b"hello")
    visit.hear_text()
    visit.say(SESSION_SWITCH, {"session_id": visit.room})
    visit.hear_text()
    visit.say(SESSION_DELETE, {"session_id": "nobody has this one"})
    visit.hear_text()


def _share(visit: Visit) -> None:
    """Prompts in the room where the others are, and comes and goes while answers stream."""
    visit.hello()
    visit.request(ATTACH, {"session_id": visit.room})
    for number in range(3):
        turn_id = visit.request(
            PROMPT, {"text": f"!slow 0.3 to all of you, {number}"}, may_fail=True
        )
        visit.request(DETACH)
        visit.request(ATTACH, {"session_id": visit.room, "observer": number == 1})
        if turn_id is not None and number == 2:
            visit.request(CANCEL, {"turn_id": turn_id["turn_id"]})


def _call_vendors(visit: Visit) -> None:
    """Answers of the three HTTP APIs: whole ones, cut ones, and one that is cancelled."""
    visit.hello()
    for model in _VENDORS:
        visit.ask("say this, please", model=model)
    model = visit.chance.choice(_VENDORS)
    if visit.chance.random() < 0.2:
        visit.ask("cut this short, please", model=model)
    turn_id = visit.prompt("stall in the middle of this sentence", model=model)
    if visit.client.event(TEXT_DELTA, TURN_FINISHED).type == TEXT_DELTA:
        visit.request(CANCEL, {"turn_id": turn_id})
        visit.until_over(turn_id)


def _vanish(visit: Visit) -> None:
    """Closes the socket in the middle of a turn, a tool's approval, an upload, a message, a
    greeting."""
    how = visit.chance.randrange(6)
    if how == 0:
        visit.client.sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with suppress(Closed):
            while True:
                visit.client.receive()
        return
    visit.hello()
    if how == 1:
        visit.prompt("!slow 2 nobody hears the end of this")
    elif how == 2:
        visit.prompt('!tool sys_monitor {"metric": "all"}')
        visit.client.event(APPROVAL_REQUEST)
    elif how == 3:
        visit.client.send(FILE_METADATA, 9, {"filename": "half", "size": 100_000})
        visit.client.send(FILE_DATA, 9, bytes(50_000))
    elif how == 4:
        visit.client.sock.sendall(HEADER.pack(PROMPT | 0x80, 9, 65_535) + bytes(65_535))
    else:
        visit.prompt("stall, and nobody waits", model=visit.chance.choice(_VENDORS))
        visit.client.event(TEXT_DELTA, TURN_FINISHED)


def _be_refused(visit: Visit) -> None:
    """Requests that can't be granted, and a connection that was never used."""
    visit.hello()
    visit.request(ATTACH, {"session_id": "nowhere"}, may_fail=True)
    visit.request(PROMPT, {"text": ""}, may_fail=True)
    visit.request(HISTORY_REQUEST, {"seq": 10**6}, may_fail=True)
    visit.request(PROMPT, {"text": "x", "create": True, "session_id": "soak"}, may_fail=True)


_VISITS: Sequence[Callable[[Visit], None]] = (
    _tour,
    _plain,
    _share,
    _call_vendors,
    _vanish,
    _be_refused,
)
