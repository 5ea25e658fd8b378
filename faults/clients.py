"""Clients that prompt, and note everything they are acknowledged.

`Talker` is one connection: either scripted, one request at a time, or with several prompts in
flight until the connection breaks. `crowd` runs many of them in threads, several in each
conversation and one in a new one. Each prompt is unique, and of a length that makes writes end
anywhere in a sector.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any

from tests.support.raw_client import (
    ATTACH,
    CONTEXT_REQUEST,
    ERROR,
    HISTORY_REQUEST,
    PROMPT,
    SESSION_LIST,
    SESSION_NEW,
    TURN_FINISHED,
    Closed,
    Frame,
    RawClient,
)

from faults.promises import Promises
from faults.serving import PATIENCE_SECONDS

_names = count(1)
_CHARACTERS_MAX = 1_500
_ON_THEIR_WAY_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    turn_id: str
    state: str


class Talker:
    def __init__(self, port: int, promises: Promises) -> None:
        self.name = f"talker{next(_names)}"
        self._ledger = promises
        self._numbers = count(1)
        self._wire = RawClient(port, timeout=PATIENCE_SECONDS)
        try:
            self._wire.hello()
        except BaseException:
            self._wire.sock.close()
            raise

    def __enter__(self) -> Talker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._wire.sock.close()

    def text(self, characters: int = 0) -> str:
        """A text that no prompt had before."""
        head = f"{self.name} says {next(self._numbers)}."
        return head if characters <= len(head) else f"{head} {'x' * (characters - len(head))}"

    def create(self) -> str:
        """Creates a conversation, which stays the current one."""
        created = self._granted(SESSION_NEW)
        self._ledger.created(created["session_id"])
        return str(created["session_id"])

    def attach(self, session_id: str) -> None:
        self._granted(ATTACH, {"session_id": session_id})

    def page(self, session_id: str, **query: object) -> dict[str, Any]:
        return self._granted(HISTORY_REQUEST, {"session_id": session_id, **query})

    def context(self, session_id: str) -> list[dict[str, Any]]:
        """The context that a model would be shown."""
        rows: list[dict[str, Any]] = self._granted(CONTEXT_REQUEST, {"session_id": session_id})[
            "entries"
        ]
        return rows

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all conversations, page by page."""
        rows: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            query = {"limit": 200} if cursor is None else {"limit": 200, "cursor": cursor}
            page = self._granted(SESSION_LIST, query)
            rows += page["sessions"]
            cursor = page["next_cursor"]
            if cursor is None:
                return rows

    def rows_missing(self, count: int) -> list[str]:
        """An error if the list does not reach this many rows. A server that finds many unknown
        files may list them while it still reads them."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (listed := len(self.rows())) != count:
            if time.monotonic() > deadline:
                return [f"the list shows {listed} of {count} conversations"]
            time.sleep(0.05)
        return []

    def ask(self, characters: int = 0) -> Finished | Refused:
        """Prompts once, and waits for the error or for the end of the turn."""
        text = self.text(characters)
        self._ledger.sends(text)
        reply = self._wire.request(PROMPT, {"text": text})
        if reply.type == ERROR:
            self._ledger.refused(text)
            return Refused(code=reply.json["code"], message=reply.json["message"])
        self._ledger.accepted(self.name, text, reply.json)
        turn_id = str(reply.json["turn_id"])
        while True:
            event = self._wire.event(TURN_FINISHED).json
            self._ledger.finished(event)
            if event["turn_id"] == turn_id:
                return Finished(turn_id=turn_id, state=event["state"])

    def chatter(self, chance: random.Random) -> None:
        """Keeps several prompts in flight until the connection breaks."""
        open_requests: dict[int, str] = {}
        running: set[str] = set()
        while True:
            while len(open_requests) + len(running) < _ON_THEIR_WAY_MAX:
                text = self.text(chance.choice((0, chance.randrange(_CHARACTERS_MAX))))
                self._ledger.sends(text)
                self._wire.next_seq = self._wire.next_seq % 0xFFFF + 1
                open_requests[self._wire.next_seq] = text
                self._wire.send(PROMPT, self._wire.next_seq, {"text": text})
            self._receive(self._wire.receive(), open_requests, running)

    def _receive(self, frame: Frame, open_requests: dict[int, str], running: set[str]) -> None:
        if frame.seq in open_requests:
            text = open_requests.pop(frame.seq)
            if frame.type != ERROR:
                self._ledger.accepted(self.name, text, frame.json)
                running.add(frame.json["turn_id"])
        elif frame.type == TURN_FINISHED:
            event = frame.json
            self._ledger.finished(event)
            running.discard(event["turn_id"])

    def _granted(self, type_: int, payload: dict[str, Any] | bytes = b"") -> dict[str, Any]:
        reply = self._wire.request(type_, payload)
        if reply.type == ERROR:
            raise NotGranted(f"request {type_:#x}: {reply.text}")
        reply_json: dict[str, Any] = reply.json
        return reply_json


class NotGranted(Exception):
    """The server answered with an error where the check needs an answer."""


@contextmanager
def crowd(port: int, promises: Promises, chance: random.Random) -> Iterator[None]:
    """Prompts in three older conversations, with two clients each, and in a new one, until the
    server ends in the body of the `with`."""
    old = promises.conversations()
    rooms: list[str | None] = [*chance.sample(old, min(3, len(old))) * 2, None]
    threads = [
        threading.Thread(
            target=_talk_until_cut, args=(port, promises, room, random.Random(chance.random()))
        )
        for room in rooms
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


def _talk_until_cut(port: int, promises: Promises, room: str | None, chance: random.Random) -> None:
    try:
        with Talker(port, promises) as talker:
            if room is None:
                talker.create()
            else:
                talker.attach(room)
            talker.chatter(chance)
    except (Closed, OSError, NotGranted):
        pass  # what was acknowledged before is noted
