"""Three clients in one conversation that all decide approvals.

One of them prompts, and every prompt makes the model call a tool that needs an approval. They
decide at once or after a random delay; sometimes one of them does not decide. All that they receive
is kept for comparison.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.raw_client import (
    ATTACH,
    PROMPT,
    SESSION_EVENT,
    TURN_FINISHED,
    Closed,
    Frame,
    RawClient,
)

from faults.serving import PATIENCE_SECONDS

APPROVAL, APPROVAL_REQUEST = 0x1D, 0x27
PROMPT_TEXT = "!tool now {}"
_PAUSE_SECONDS_MAX = 0.003
_SILENT = 0.15


@dataclass(slots=True, kw_only=True)
class ReceivedByClient:
    events: list[bytes] = field(default_factory=list)
    """All events except presence, which only those receive who were there before."""
    decided: dict[str, str] = field(default_factory=dict)
    decisions: list[tuple[str, str]] = field(default_factory=list)
    """The replies to APPROVAL requests: which approval, and the decision that holds."""
    twice: list[str] = field(default_factory=list)


class Decider:
    def __init__(self, port: int, chance: random.Random, *, prompts: bool = False) -> None:
        self.received = ReceivedByClient()
        self.ended = 0
        self._chance = chance
        self._prompts = prompts
        self._wire = RawClient(port, timeout=PATIENCE_SECONDS)
        self._wire.hello()

    def close(self) -> None:
        self._wire.sock.close()

    def attach(self, session_id: str) -> dict[str, Any]:
        attached: dict[str, Any] = self._wire.request(ATTACH, {"session_id": session_id}).json
        return attached

    def race(self, turns: int, *, finished: Callable[[], None]) -> None:
        """Works until this many turns have ended."""
        if self._prompts:
            self.prompt()
        while self.ended < turns:
            frame = self._next()
            if frame.type == APPROVAL_REQUEST:
                self._decide_perhaps(frame.json)
            if frame.type == TURN_FINISHED:
                finished()
                if self._prompts and self.ended < turns:
                    self.prompt()

    def prompt(self) -> None:
        self._send(PROMPT, {"text": PROMPT_TEXT})

    def wait_for(self, type_: int) -> dict[str, Any]:
        while (frame := self._next()).type != type_:
            pass
        found: dict[str, Any] = frame.json
        return found

    def decide(self, approval_id: str) -> None:
        decision = self._chance.choice(["allow", "deny"])
        self._send(APPROVAL, {"approval_id": approval_id, "decision": decision})

    def read_out(self) -> None:
        """Reads what a dead server has left in the socket."""
        try:
            while True:
                self._next()
        except Closed:
            pass

    def _decide_perhaps(self, question: dict[str, Any]) -> None:
        if not self._prompts and self._chance.random() < _SILENT:
            return
        if self._chance.random() < 0.5:
            time.sleep(self._chance.uniform(0, _PAUSE_SECONDS_MAX))
        self.decide(question["approval_id"])

    def _next(self) -> Frame:
        frame = self._wire.pushed.pop(0) if self._wire.pushed else self._wire.receive()
        if frame.type == APPROVAL:
            self.received.decisions.append((frame.json["approval_id"], frame.json["decision"]))
        elif frame.seq == 0:
            self._receive(frame)
        return frame

    def _receive(self, frame: Frame) -> None:
        self.ended += frame.type == TURN_FINISHED
        event = frame.json if frame.type == SESSION_EVENT else {}
        if event.get("event") == "presence":
            return
        self.received.events.append(frame.payload)
        if event.get("event") == "approval":
            if event["approval_id"] in self.received.decided:
                self.received.twice.append(event["approval_id"])
            self.received.decided[event["approval_id"]] = event["decision"]

    def _send(self, type_: int, payload: dict[str, object]) -> None:
        self._wire.next_seq = self._wire.next_seq % 0xFFFF + 1
        self._wire.send(type_, self._wire.next_seq, payload)
