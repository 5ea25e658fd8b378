"""What the clients were acknowledged, noted when it is received.

Many clients fill it at once, and it is kept when the server restarts: a turn that one process
acknowledged may finish in the next.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from faults.comparison import Acked, Promise, PromiseKind

_STORAGE_REFUSED = ("unavailable", "read_only")


class Promises:
    def __init__(self, acked: Acked | None = None) -> None:
        self._acked = acked or Acked()
        self._promises = list(self._acked.promises)
        self._conversations = set(self._acked.conversations)
        self._sent = set(self._acked.sent)
        self._refused = set(self._acked.refused)
        self._turns = {p.turn_id: p for p in self._promises if p.kind == "prompt"}
        self._ends = {(p.session_id, p.seq) for p in self._promises if p.kind != "prompt"}
        self._is_closed = False
        self._changed = threading.Condition()

    def acked(self) -> Acked:
        with self._changed:
            return replace(
                self._acked,
                promises=tuple(self._promises),
                conversations=frozenset(self._conversations),
                sent=frozenset(self._sent),
                refused=frozenset(self._refused),
            )

    def __len__(self) -> int:
        return len(self._promises)

    def wait_for(self, count: int, *, seconds_max: float) -> bool:
        """Waits for this many promises; False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._promises) >= count, seconds_max)

    def close(self) -> None:
        """Ignores what is received from now on: a real power cut would have prevented it."""
        with self._changed:
            self._is_closed = True

    def reopen(self) -> None:
        with self._changed:
            self._is_closed = False

    def conversations(self) -> list[str]:
        with self._changed:
            return sorted(self._conversations)

    def created(self, session_id: str) -> None:
        with self._changed:
            if not self._is_closed:
                self._conversations.add(session_id)

    def sends(self, text: str) -> None:
        with self._changed:
            self._sent.add(text)

    def refused(self, text: str) -> None:
        """Notes a prompt that a living server refused. A server that dies at once may have stored
        it all the same."""
        with self._changed:
            self._refused.add(text)

    def accepted(self, author: str, text: str, receipt: dict[str, Any]) -> None:
        promise = Promise(
            session_id=receipt["session_id"],
            seq=receipt["seq"],
            turn_id=receipt["turn_id"],
            kind="prompt",
            text=text,
            author=author,
        )
        with self._changed:
            if not self._is_closed:
                self._turns[promise.turn_id] = promise
                self._promise(promise)

    def finished(self, event: dict[str, Any]) -> None:
        """Notes the end of a turn. All clients of the conversation receive it; it counts as one
        promise. A turn that failed because its end can't be written promises nothing that is on
        disk."""
        if (event.get("error") or {}).get("code") in _STORAGE_REFUSED:
            return
        with self._changed:
            prompt = self._turns.get(event["turn_id"])
            seq = event.get("seq")
            is_new = prompt is not None and (prompt.session_id, seq) not in self._ends
            if prompt is None or seq is None or not is_new or self._is_closed:
                return
            self._ends.add((prompt.session_id, seq))
            kind: PromiseKind = "answer" if event["state"] == "completed" else "end"
            self._promise(replace(prompt, seq=seq, kind=kind))

    def _promise(self, promise: Promise) -> None:
        self._promises.append(promise)
        self._changed.notify_all()
