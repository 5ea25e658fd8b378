"""Clients of a cluster: each goes to any server, prompts in any conversation, and listens.

A prompt has a message_id of its own and is sent again, to any server, until there is a
receipt. Every receipt and every entry that was heard is kept, to be compared with what is in
Redis afterwards (`verdict`).
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.support.raw_client import (
    ATTACH,
    ENTRY,
    ERROR,
    PROMPT,
    SESSION_EVENT,
    SESSION_NEW,
    TEXT_DELTA,
    TURN_FINISHED,
    Closed,
    Frame,
    RawClient,
)

from faults.cluster import Cluster
from faults.stored import ends_turn
from faults.whole_turns import broken_record

_REPLY_SECONDS_MAX = 6.0
"""Then a client goes to another server."""
_RECEIPT_SECONDS_MAX = 90.0
_TURN_SECONDS_MAX = 15.0
_AGAIN_SECONDS = 0.05
_SETTLE_SECONDS_MAX = 90.0
_TOOLS = 0.2
"""How often a prompt makes the model call a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    session_id: str
    message_id: str
    turn_id: str
    seq: int
    text: str
    seconds: float
    """From the first attempt to the receipt."""
    at: float


@dataclass(slots=True, kw_only=True)
class Crowd:
    cluster: Cluster
    conversations: list[str] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    received: dict[tuple[str, int], str] = field(default_factory=dict)
    """The id of every entry that anybody heard, by conversation and number."""
    refusals: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    told: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The state and number of every end that anybody heard, by turn."""
    shown: dict[tuple[str, int], str] = field(default_factory=dict)
    """The longest text that was shown to one client, by turn and call."""
    complaints: list[str] = field(default_factory=list)
    words_max: int = 0
    """A prompt gets up to that many words more, and so does its answer, which then takes longer."""
    in_order: bool = True
    """Whether entries must come one after the other: not if a failover may take some back."""
    is_over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def create(self, count: int) -> None:
        for number in range(count):
            port = self.cluster.ports[number % len(self.cluster.ports)]
            with RawClient(port, timeout=_REPLY_SECONDS_MAX) as wire:
                wire.hello()
                made = wire.request(SESSION_NEW)
                session_id = made.json["session_id"]
                wire.request(PROMPT, {"text": f"first of {session_id}"})
                self.conversations.append(session_id)

    def talk(self, chance: random.Random, *, clients: int) -> list[threading.Thread]:
        """Until `is_over`."""
        threads = [
            threading.Thread(
                target=Talker(self, number, random.Random(chance.random())).talk, daemon=True
            )
            for number in range(clients)
        ]
        for thread in threads:
            thread.start()
        return threads

    def wait_for(self, count: int, *, seconds_max: float) -> bool:
        deadline = time.monotonic() + seconds_max
        while len(self.acknowledged) < count:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def receives(self, session_id: str, entry: Mapping[str, Any]) -> None:
        place, id_ = (session_id, int(entry["seq"])), str(entry["id"])
        with self._lock:
            known = self.received.setdefault(place, id_)
        if known != id_:
            self.complain(f"{session_id}: entry {place[1]} was heard as {known} and as {id_}")

    def hears_end(self, turn_id: str, end: tuple[str, int]) -> None:
        with self._lock:
            known = self.told.setdefault(turn_id, end)
            self.ends[end[0]] += 1
        if known != end:
            self.complain(f"turn {turn_id} was told to have ended as {known} and as {end}")

    def sees(self, turn_id: str, call: int, text: str) -> None:
        with self._lock:
            if len(text) > len(self.shown.get((turn_id, call), "")):
                self.shown[turn_id, call] = text

    def complain(self, sentence: str) -> None:
        with self._lock:
            self.complaints.append(sentence)

    def settle(self) -> dict[str, list[dict[str, Any]]]:
        """Somebody prompts once more in each conversation, and every turn comes to its end: one
        that could not be written is owed until the next."""
        deadline = time.monotonic() + _SETTLE_SECONDS_MAX
        for session_id in self.conversations:
            while not self._says_the_last_word(session_id):
                if time.monotonic() > deadline:
                    self.complain(f"{session_id} can't be prompted any more")
                    break
        while True:
            streams = self.cluster.streams()
            records = streams.records(self.conversations)
            if not any(map(unfinished, records.values())) or time.monotonic() > deadline:
                self.complaints += streams.complaints
                return records
            time.sleep(0.1)

    def _says_the_last_word(self, session_id: str) -> bool:
        prompt = {"text": f"last of {session_id}", "message_id": "last", "session_id": session_id}
        for port in self.cluster.ports:
            with suppress(OSError, Closed), RawClient(port, timeout=_REPLY_SECONDS_MAX) as wire:
                wire.hello()
                if wire.request(PROMPT, prompt).type != ERROR:
                    return True
        time.sleep(_AGAIN_SECONDS)
        return False


class _TryAgain(Exception):
    """Here, or elsewhere."""


class Talker:
    def __init__(self, crowd: Crowd, number: int, chance: random.Random) -> None:
        self._crowd = crowd
        self._name = f"client{number}"
        self._chance = chance
        self._wire: RawClient | None = None
        self._session_id = ""
        self._next_seq: int | None = None
        """Of the entry that must come next on this connection."""
        self._ended: set[str] = set()
        self._shown: dict[tuple[str, int], str] = {}

    def talk(self) -> None:
        number = 0
        while not self._crowd.is_over.is_set():
            self._leave()
            self._session_id = self._chance.choice(self._crowd.conversations)
            for _ in range(self._chance.randint(1, 5)):
                if self._crowd.is_over.is_set():
                    break
                number += 1
                kind = "tool" if self._chance.random() < _TOOLS else "say"
                words = " word" * self._chance.randint(0, self._crowd.words_max)
                message_id = f"{kind}-{self._name}-says-{number}"
                if not self._prompt(f"{kind} {self._name} says {number}{words}", message_id):
                    return
        self._leave()

    def _prompt(self, text: str, message_id: str) -> bool:
        began = time.monotonic()
        while time.monotonic() - began < _RECEIPT_SECONDS_MAX:
            try:
                receipt = self._ask({"text": text, "message_id": message_id})
            except (OSError, Closed, _TryAgain):
                self._leave()
                time.sleep(_AGAIN_SECONDS * self._chance.random() * 2)
                continue
            now = time.monotonic()
            self._crowd.acknowledged.append(
                Acknowledged(
                    session_id=receipt["session_id"],
                    message_id=message_id,
                    turn_id=receipt["turn_id"],
                    seq=receipt["seq"],
                    text=text,
                    seconds=now - began,
                    at=now,
                )
            )
            with suppress(OSError, Closed, _TryAgain):
                self._wait_for_end(receipt["turn_id"])
                return True
            self._leave()
            return True
        self._crowd.complain(f"{message_id} was not accepted within {_RECEIPT_SECONDS_MAX:g} s")
        return False

    def _ask(self, prompt: dict[str, object]) -> dict[str, Any]:
        wire = self._wire or self._enter()
        reply = wire.request(PROMPT, prompt)
        self._receive_all(wire)
        return self._granted(reply)

    def _enter(self) -> RawClient:
        port = self._chance.choice(self._crowd.cluster.ports)
        wire = self._wire = RawClient(port, timeout=_REPLY_SECONDS_MAX)
        self._ended.clear()
        self._shown.clear()
        wire.hello()
        attached = self._granted(wire.request(ATTACH, {"session_id": self._session_id}))
        self._next_seq = attached["head_seq"] + 1
        return wire

    def _leave(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.sock.close()

    def _granted(self, reply: Frame) -> dict[str, Any]:
        error_json: dict[str, Any] = reply.json
        if reply.type != ERROR:
            return error_json
        self._crowd.refusals[error_json["code"]] += 1
        if not error_json["retryable"]:
            self._crowd.complain(f"refused for good: {error_json['code']}: {error_json['message']}")
        raise _TryAgain

    def _wait_for_end(self, turn_id: str) -> None:
        deadline = time.monotonic() + _TURN_SECONDS_MAX
        assert self._wire is not None
        while turn_id not in self._ended and time.monotonic() < deadline:
            self._receive(self._wire.receive())

    def _receive_all(self, wire: RawClient) -> None:
        pushed, wire.pushed = wire.pushed, []
        for frame in pushed:
            self._receive(frame)

    def _receive(self, frame: Frame) -> None:
        if frame.type == TURN_FINISHED:
            event = frame.json
            if event["turn_id"] in self._ended:
                self._crowd.complain(f"the end of turn {event['turn_id']} was told twice")
            self._ended.add(event["turn_id"])
            self._crowd.hears_end(event["turn_id"], (event["state"], int(event["seq"])))
        elif frame.type == TEXT_DELTA:
            event = frame.json
            call = (event["turn_id"], int(event["call"]))
            before = self._shown.get(call, "")
            if int(event["offset"]) == len(before):  # else the client came in the middle
                self._shown[call] = before + event["text"]
                self._crowd.sees(*call, self._shown[call])
        elif frame.type == ENTRY:
            event = frame.json
            seq = int(event["entry"]["seq"])
            if self._next_seq is not None and self._crowd.in_order and seq != self._next_seq:
                self._crowd.complain(
                    f"{event['session_id']}: entry {seq} came where {self._next_seq} was due"
                )
            self._next_seq = seq + 1
            self._crowd.receives(event["session_id"], event["entry"])
        elif frame.type == ERROR or (
            frame.type == SESSION_EVENT and frame.json["event"] in ("lagged", "shutdown")
        ):
            raise _TryAgain


def unfinished(entries: Sequence[Mapping[str, Any]]) -> set[str]:
    turns = {str(entry["turn_id"]) for entry in entries if entry["kind"] == "model_input"}
    return turns - {str(entry["turn_id"]) for entry in entries if ends_turn(dict(entry))}


def verdict(
    crowd: Crowd,
    records: Mapping[str, Sequence[Mapping[str, Any]]],
    calls: Counter[str],
    *,
    lost_between: tuple[float, float] | None = None,
) -> Iterator[str]:
    """What is wrong. `lost_between`: what was acknowledged then may be missing."""
    yield from crowd.complaints
    yield from broken_record(records)
    for session_id, entries in records.items():
        yield from (f"turn {turn} never ended" for turn in sorted(unfinished(entries)))
        sent = Counter(
            entry["message_id"]
            for entry in entries
            if entry["kind"] == "model_input" and entry.get("message_id")
        )
        yield from (f"{session_id}: {each} is there twice" for each in sent if sent[each] > 1)
    ids = {
        (session_id, entry["seq"]): entry for session_id in records for entry in records[session_id]
    }
    for receipt in crowd.acknowledged:
        if lost_between is not None and lost_between[0] <= receipt.at <= lost_between[1]:
            continue
        found = ids.get((receipt.session_id, receipt.seq), {})
        if (found.get("message_id"), found.get("turn_id")) != (receipt.message_id, receipt.turn_id):
            where = f"entry {receipt.seq} of {receipt.session_id}"
            yield f"lost: {receipt.message_id}, acknowledged as {where}"
    if lost_between is None:
        for (session_id, seq), id_ in crowd.received.items():
            if ids.get((session_id, seq), {}).get("id") != id_:
                yield f"{session_id}: entry {seq} was heard as {id_}, and is not that"
    yield from (f"called {count} times: {what}" for what, count in calls.items() if count > 1)


def untrue(crowd: Crowd, records: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """What was told of turns, or shown of answers, and is not so in the record."""
    every = [entry for entries in records.values() for entry in entries]
    ends = {
        str(entry["turn_id"]): (str(entry.get("state") or "completed"), int(entry["seq"]))
        for entry in every
        if entry.get("turn_id") and ends_turn(dict(entry))
    }
    for turn_id, told in crowd.told.items():
        if ends.get(turn_id) != told:
            yield f"turn {turn_id} was told to have ended as {told}, and is {ends.get(turn_id)}"
    stored = {
        (str(entry["turn_id"]), int(entry["call"])): str(entry["content"])
        for entry in every
        if entry["kind"] == "model_output"
    }
    for (turn_id, call), text in crowd.shown.items():
        if not stored.get((turn_id, call), "").startswith(text):
            have = len(stored.get((turn_id, call), ""))
            yield f"turn {turn_id}, call {call}: {len(text)} characters shown, {have} stored"
