"""Vendors that fail in every way they can, each in a conversation of its own, and what
must come of it: one end of every turn, whole answers told from cut ones, a next turn
that works, and a key that is nowhere.

A prompt names its case, and the emulator's script does what the case says: once, or as
long as it is asked. Every case has a provider of its own, so that no breaker that one of
them blows hides another.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import orjson
from tests.support.raw_client import (
    AGENT_THOUGHT,
    HISTORY_REQUEST,
    PING,
    PROMPT,
    TEXT_DELTA,
    TURN_FINISHED,
    Frame,
    RawClient,
)
from tests.vendors import (
    Answer,
    BrokenJson,
    Call,
    Cut,
    ErrorEvent,
    Fault,
    HangUp,
    NoEnd,
    Stall,
    Status,
    Text,
)
from tests.vendors.answers import ApiName

WHOLE: Final = " ".join(f"word{number}" for number in range(1, 21))
CANARY: Final = "sk-canary-nobody-may-ever-see-this"
APIS: Final[tuple[ApiName, ...]] = ("chat", "responses", "messages")
_LATE: Final = 9
"""Events: by then each API has said a few words of its answer."""

Json: TypeAlias = dict[str, Any]
Ending: TypeAlias = Literal["completed", "cut", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    fault: Fault
    ending: Ending
    """`cut`: failed, with what there was of the answer; `failed`: with none."""
    asked: int = 1
    """How often the vendor is asked until the turn ends."""
    lasts: bool = False


CASES: Final = (
    Case(name="429", fault=Status(status=429, retry_after="0.1"), ending="completed", asked=2),
    Case(name="500", fault=Status(status=500), ending="completed", asked=2),
    Case(name="529", fault=Status(status=529), ending="completed", asked=2),
    Case(name="cut", fault=Cut(after=_LATE), ending="cut"),
    Case(name="stall", fault=Stall(after=_LATE), ending="cut"),
    Case(name="error_event", fault=ErrorEvent(after=_LATE), ending="cut"),
    Case(name="broken_json", fault=BrokenJson(after=_LATE), ending="cut"),
    Case(name="no_end", fault=NoEnd(), ending="cut"),
)
"""The eight faults, where they hurt most."""

MORE_CASES: Final = (
    *CASES,
    Case(name="429_lasts", fault=Status(status=429), ending="failed", asked=3, lasts=True),
    Case(name="500_lasts", fault=Status(status=500), ending="failed", asked=3, lasts=True),
    Case(name="529_lasts", fault=Status(status=529), ending="failed", asked=3, lasts=True),
    Case(name="429_for_an_hour", fault=Status(status=429, retry_after="3600"), ending="failed"),
    Case(name="hang_up", fault=HangUp(), ending="completed", asked=2),
    Case(name="cut_at_once", fault=Cut(after=0), ending="completed", asked=2),
    Case(name="stall_at_once", fault=Stall(after=0), ending="failed"),
    Case(name="error_at_once", fault=ErrorEvent(after=0), ending="completed", asked=2),
    Case(name="broken_at_once", fault=BrokenJson(after=0), ending="completed", asked=2),
    Case(name="failed_event", fault=ErrorEvent(after=_LATE, failed=True), ending="cut"),
)
"""And where they come at once, or stay."""


class FailingScript:
    """What the emulator says: a function from a call to an answer."""

    def __init__(self, *, sabotaged: bool = False) -> None:
        """`sabotaged`: nothing ever fails, and whoever judges must notice."""
        self.asked: Counter[str] = Counter()
        self._cases = {} if sabotaged else {case.name: case for case in MORE_CASES}

    def __call__(self, call: Call) -> Answer:
        named: list[tuple[str, str]] = re.findall(
            r"\[([a-z]+) (\w+)\]", orjson.dumps(call.body).decode()
        )
        if not named:
            return Answer(parts=(Text(WHOLE),))
        api, name = named[-1]
        self.asked[f"{api} {name}"] += 1
        case = self._cases.get(name)
        if case is None or (self.asked[f"{api} {name}"] > 1 and not case.lasts):
            return Answer(parts=(Text(WHOLE),))
        return Answer(parts=(Text(WHOLE),), fault=case.fault)


def providers_of(
    cases: Sequence[Case], *, openai_url: str, anthropic_url: str, key_file: Path
) -> list[Json]:
    """Settings: one for every case of every API."""
    model_of = {"chat": "gpt-5.6", "responses": "gpt-5.6", "messages": "claude-opus-5-5"}
    kinds: dict[ApiName, Json] = {
        "chat": {"type": "openai", "api": "chat", "base_url": openai_url},
        "responses": {"type": "openai", "api": "responses", "base_url": openai_url},
        "messages": {"type": "anthropic", "base_url": anthropic_url},
    }
    return [
        {
            "id": f"{api}-{case.name}",
            "models": [model_of[api]],
            "api_key_file": str(key_file),
            **kinds[api],
        }
        for api, case in product(APIS, cases)
    ]


@dataclass(slots=True, kw_only=True)
class Tried:
    """One case of one API, as its client saw it."""

    api: ApiName
    case: Case
    client: RawClient
    turn_id: str = ""
    seconds: float = 0.0
    frames: list[Frame] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.api} {self.case.name}"

    @property
    def text(self) -> str:
        deltas = [frame.json for frame in self.frames if frame.type == TEXT_DELTA]
        return "".join(delta["text"] for delta in deltas if delta["turn_id"] == self.turn_id)

    @property
    def ends(self) -> list[Json]:
        ends = [frame.json for frame in self.frames if frame.type == TURN_FINISHED]
        return [end for end in ends if end["turn_id"] == self.turn_id]

    @property
    def retries(self) -> int:
        thoughts = [frame.json for frame in self.frames if frame.type == AGENT_THOUGHT]
        return sum(thought["type"] == "retrying" for thought in thoughts)


def try_all(
    port: int, cases: Sequence[Case], script: FailingScript
) -> tuple[list[Tried], list[str]]:
    """All at once, each in a conversation of its own; and what is wrong."""
    tried = [
        Tried(api=api, case=case, client=RawClient(port, timeout=60.0))
        for api, case in product(APIS, cases)
    ]
    begun = time.monotonic()
    try:
        for each in tried:
            each.client.hello()
            each.turn_id = _prompt(each, f"[{each.api} {each.case.name}] go on")
        for each in tried:
            _receive_end(each, each.turn_id)
            each.seconds = time.monotonic() - begun
        complaints = [f"{each}: {text}" for each in tried for text in _judge(each, script)]
    finally:
        for each in tried:
            each.client.sock.close()
    return tried, complaints


def _prompt(each: Tried, text: str) -> str:
    model = {"messages": "claude-opus-5-5"}.get(each.api, "gpt-5.6")
    payload: Json = {"text": text, "model": f"{each.api}-{each.case.name}/{model}"}
    receipt = each.client.request(PROMPT, payload)
    turn_id: str = receipt.json["turn_id"]
    return turn_id


def _receive_end(each: Tried, turn_id: str) -> None:
    for frame in each.client.events():
        each.frames.append(frame)
        if frame.type == TURN_FINISHED and frame.json["turn_id"] == turn_id:
            return


def _judge(each: Tried, script: FailingScript) -> Iterator[str]:
    entries = _entries(each, each.turn_id)
    each.client.request(PING, b"is that all?")
    each.frames += each.client.pushed
    each.client.pushed.clear()
    yield from _judge_end(each, entries)
    asked = script.asked[str(each)]
    if asked != each.case.asked or each.retries != asked - 1:
        yield f"asked {asked} times, {each.retries} times it was said that it is asked again"
    if each.case.lasts or each.case.name == "429_for_an_hour":
        return  # it is still out of order
    next_turn = _prompt(each, f"[{each.api} fine] and now?")
    _receive_end(each, next_turn)
    if each.frames[-1].json["state"] != "completed":
        yield f"the next turn: {each.frames[-1].json}"


def _judge_end(each: Tried, entries: Sequence[Json]) -> Iterator[str]:
    if len(each.ends) != 1:
        yield f"{len(each.ends)} ends"
    state = each.ends[0]["state"] if each.ends else "none"
    if (state == "completed") != (each.case.ending == "completed"):
        yield f"it ended as {each.ends}"
    outputs = [entry for entry in entries if entry["kind"] == "model_output"]
    stored = "".join(entry["content"] for entry in outputs)
    if stored != each.text:
        yield f"said {each.text!r}, stored {stored!r}"
    if each.case.ending == "completed" and stored != WHOLE:
        yield f"completed, but stored is {stored!r}"
    if each.case.ending == "cut" and not (stored and WHOLE.startswith(stored)):
        yield f"cut, but stored is {stored!r}"
    if each.case.ending == "failed" and (outputs or entries[-1]["kind"] != "fault"):
        yield f"nothing was said, but stored is {entries}"
    for entry in outputs:
        if (entry["state"] == "completed") != (each.case.ending == "completed"):
            yield f"stored as {entry['state']}: {entry['content']!r}"


def _entries(each: Tried, turn_id: str) -> list[Json]:
    page = each.client.request(HISTORY_REQUEST, {"view": "entries", "limit": 50}).json
    return [entry for entry in page["messages"] if entry.get("turn_id") == turn_id]


def places_of_the_key(tried: Sequence[Tried], directory: Path, *, but: Path) -> list[str]:
    """Frames, and files below the directory, that hold the key."""
    key = CANARY.encode()
    frames = [f"a frame of {each}" for each in tried for f in each.frames if key in f.payload]
    files = [path for path in directory.rglob("*") if path.is_file() and path != but]
    return frames + [f"the file {path.name}" for path in files if key in path.read_bytes()]
