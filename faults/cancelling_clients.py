"""Clients that cancel their turns: at once, in mid-answer, while a tool runs, while the turn is
queued, twice, or when it is already over.

Each client sends several prompts at a time, so that most are queued. When to cancel is chosen with
the prompt: at its receipt, or after a number of events of one kind; and then after a short delay,
so that cancels also fall between two events.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from tests.support.raw_client import (
    ATTACH,
    CANCEL,
    ERROR,
    PING,
    PROMPT,
    TEXT_DELTA,
    TOOL_FINISHED,
    TOOL_STARTED,
    TURN_FINISHED,
    TURN_STARTED,
    Frame,
    RawClient,
)

from faults.serving import PATIENCE_SECONDS
from faults.whole_turns import ClientTurn

_ON_THEIR_WAY_MAX = 3
_PAUSE_SECONDS_MAX = 0.004
_AGAIN = 0.15
"""The share of cancelled turns that are cancelled a second time."""
_BLINDLY = 0.1
"""The share of prompts that are followed at once by a cancel of whatever turn runs."""
_PROMPTS = (
    "!tool now {}",
    '!tool notebook {"action": "write", "text": "note %d"}',
    '!tool sys_monitor {"metric": "all"}',
    '!tool nowhere {"number": %d}',
    '!tool notebook {"action": "wri',
    "!slow 0.2 one two three four five six seven eight %d",
    "!think about number %d",
    "plain text number %d, said back word by word",
)


@dataclass(slots=True, kw_only=True)
class _Turn:
    turns: ClientTurn
    moment: int
    """Cancels after an event of this type; 0: after the receipt."""
    events_left: int
    waits: bool
    runs_tool: bool = False


class Canceller:
    def __init__(
        self, port: int, chance: random.Random, *, cancels: int, cancelled: Callable[[], None]
    ) -> None:
        self.turns: list[ClientTurn] = []
        self.met: Counter[str] = Counter()
        """The states of the turns when the cancels were sent, as far as the client knew them."""
        self.in_time = 0
        """The number of cancels that the server confirmed."""
        self._chance = chance
        self._cancelled = cancelled
        self._cancels_left = cancels
        self._prompts: dict[int, str] = {}
        self._cancels: set[int] = set()
        self._open: dict[str, _Turn] = {}
        self._wire = RawClient(port, timeout=PATIENCE_SECONDS)
        self._wire.hello()

    def __enter__(self) -> Canceller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._wire.sock.close()

    def work(self, session_id: str) -> None:
        """Works until all cancels are sent and every turn has ended."""
        self._wire.request(ATTACH, {"session_id": session_id})
        while self._cancels_left:
            if len(self._prompts) + len(self._open) < _ON_THEIR_WAY_MAX:
                self._ask()
            else:
                self._receive(self._wire.receive())
        while self._prompts or self._cancels or self._open:
            self._receive(self._wire.receive())
        self._wire.request(PING, b"is that all?")
        for frame in self._wire.pushed:
            self._receive(frame)

    def _send(self, type_: int, payload: dict[str, object]) -> int:
        self._wire.next_seq = self._wire.next_seq % 0xFFFF + 1
        self._wire.send(type_, self._wire.next_seq, payload)
        return self._wire.next_seq

    def _ask(self) -> None:
        template = self._chance.choice(_PROMPTS)
        text = template % self._chance.randrange(10_000) if "%d" in template else template
        self._prompts[self._send(PROMPT, {"text": text})] = text
        if self._chance.random() < _BLINDLY:
            self._cancel({}, "whatever ran")

    def _receive(self, frame: Frame) -> None:
        if frame.seq in self._prompts:
            self._accepted(self._prompts.pop(frame.seq), frame)
        elif frame.seq in self._cancels:
            self._cancels.discard(frame.seq)
            self.in_time += frame.json["cancelled"]
        elif frame.seq == 0 and frame.payload.startswith(b"{"):
            event = json.loads(frame.payload)
            if event.get("turn_id") is not None:
                self._turn_event(frame.type, event)

    def _accepted(self, text: str, frame: Frame) -> None:
        if frame.type == ERROR:
            raise RuntimeError(f"a prompt was refused: {frame.text}")
        receipt = frame.json
        turns = ClientTurn(
            session_id=receipt["session_id"],
            turn_id=receipt["turn_id"],
            seq=receipt["seq"],
            text=text,
        )
        self.turns.append(turns)
        moment, events = self._moment(text)
        turn = _Turn(turns=turns, moment=moment, events_left=events, waits=receipt["position"] > 0)
        self._open[turns.turn_id] = turn
        if not moment:
            self._cancel_turn(turn)

    def _moment(self, text: str) -> tuple[int, int]:
        if text.startswith("!tool"):
            types = (0, TURN_STARTED, TOOL_STARTED, TOOL_FINISHED, TEXT_DELTA, TURN_FINISHED)
        else:
            types = (0, TURN_STARTED, TEXT_DELTA, TEXT_DELTA, TEXT_DELTA, TURN_FINISHED)
        type_ = self._chance.choice(types)
        return type_, self._chance.randint(1, 4) if type_ == TEXT_DELTA else 1

    def _turn_event(self, type_: int, event: dict[str, object]) -> None:
        if type_ == TURN_FINISHED:
            self._finished(event)
        turn = self._open.get(str(event["turn_id"]))
        if turn is None:
            return
        turn.waits = turn.waits and type_ != TURN_STARTED
        turn.runs_tool = type_ == TOOL_STARTED or (turn.runs_tool and type_ != TOOL_FINISHED)
        turn.events_left -= type_ == turn.moment
        if type_ == turn.moment and turn.events_left == 0:
            self._cancel_turn(turn)
        if type_ == TURN_FINISHED:
            del self._open[turn.turns.turn_id]

    def _finished(self, event: dict[str, object]) -> None:
        for turn in self.turns:
            if turn.turn_id == event["turn_id"]:
                turn.ends.append((str(event["state"]), int(str(event["seq"]))))

    def _cancel_turn(self, turn: _Turn) -> None:
        time.sleep(self._chance.random() * _PAUSE_SECONDS_MAX)
        met = "one that ran"
        if turn.turns.ends:
            met = "one that was over"
        elif turn.runs_tool:
            met = "a tool"
        elif turn.waits:
            met = "one that waited"
        self._cancel({"turn_id": turn.turns.turn_id}, met)
        if self._chance.random() < _AGAIN:
            self._cancel({"turn_id": turn.turns.turn_id}, "once more")

    def _cancel(self, payload: dict[str, object], met: str) -> None:
        if not self._cancels_left:
            return
        self._cancels_left -= 1
        self._cancels.add(self._send(CANCEL, payload))
        self.met[met] += 1
        self._cancelled()
