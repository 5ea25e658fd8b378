"""Compares what was acknowledged with what is stored.

A client was promised a prompt when it got the receipt, an answer when it got TURN_FINISHED, a
conversation when it got the reply to SESSION_NEW. A prompt that was sent but not acknowledged may
be stored or not, but only whole; one that was refused with an error is not stored. These are pure
functions with tests of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

PromiseKind = Literal["prompt", "answer", "end"]
"""An end is a turn that did not complete: an entry in its place says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    session_id: str
    seq: int
    turn_id: str
    kind: PromiseKind
    text: str
    author: str
    """The client. The prompts of one client are stored in the order of their receipts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    promises: tuple[Promise, ...] = ()
    """In the order of the acknowledgements."""
    conversations: frozenset[str] = frozenset()
    sent: frozenset[str] = frozenset()
    """Every prompt that may be stored; each text is sent once."""
    refused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEntry:
    seq: int
    kind: str
    turn_id: str | None
    text: str
    ends_turn: bool = False


Found = Mapping[str, Sequence[FoundEntry]]


def verdict(acked: Acked, found: Found) -> list[str]:
    """The broken promises, one sentence each; empty if all were kept."""
    missing = (acked.conversations | {p.session_id for p in acked.promises}) - set(found)
    return [
        *(f"lost: the whole conversation {session_id}" for session_id in sorted(missing)),
        *_misnumbered(found),
        *_twice(found),
        *_never_sent(acked, found),
        *_broken_promises(acked, found),
        *_out_of_order(acked, found),
    ]


def _misnumbered(found: Found) -> Iterator[str]:
    for session_id, entries in found.items():
        for place, entry in enumerate(entries, start=1):
            if entry.seq != place:
                yield f"misnumbered: entry {entry.seq} of {session_id} stands at place {place}"
                break


def _twice(found: Found) -> Iterator[str]:
    prompts = Counter(entry.text for entries in found.values() for entry in _prompts(entries))
    for text, times in prompts.items():
        if times > 1:
            yield f"duplicated: {_short(text)} is there {times} times"
    for session_id, entries in found.items():
        ends = Counter(entry.turn_id for entry in entries if entry.ends_turn)
        for turn_id, times in ends.items():
            if times > 1:
                yield f"duplicated: turn {turn_id} of {session_id} ends {times} times"


def _never_sent(acked: Acked, found: Found) -> Iterator[str]:
    for session_id, entries in found.items():
        for entry in _prompts(entries):
            if entry.text in acked.refused:
                yield f"refused, yet there: {_short(entry.text)} is entry {entry.seq}"
            elif entry.text not in acked.sent:
                yield f"never sent: {_short(entry.text)} is entry {entry.seq} of {session_id}"


def _broken_promises(acked: Acked, found: Found) -> Iterator[str]:
    for promise in acked.promises:
        entries = found.get(promise.session_id)
        if entries is None:
            continue  # reported already: the whole conversation is lost
        here = entries[promise.seq - 1] if promise.seq <= len(entries) else None
        if here is not None and _keeps(here, promise):
            continue
        name = f"{promise.kind} {_short(promise.text)}, entry {promise.seq}"
        elsewhere = [entry.seq for entry in entries if _keeps(entry, promise)]
        if elsewhere:
            yield f"reordered: {name}, is now entry {elsewhere[0]} of {promise.session_id}"
        else:
            yield f"lost: {name} of {promise.session_id}"


def _out_of_order(acked: Acked, found: Found) -> Iterator[str]:
    places = {
        (session_id, entry.text): entry.seq
        for session_id, entries in found.items()
        for entry in _prompts(entries)
    }
    newest: dict[tuple[str, str], int] = {}
    for promise in acked.promises:
        place = places.get((promise.session_id, promise.text))
        if promise.kind != "prompt" or place is None:
            continue
        queue = (promise.session_id, promise.author)
        if place < newest.get(queue, 0):
            yield f"reordered: {_short(promise.text)} stands before what was accepted earlier"
        newest[queue] = max(place, newest.get(queue, 0))


def _keeps(entry: FoundEntry, promise: Promise) -> bool:
    if entry.turn_id != promise.turn_id:
        return False
    match promise.kind:
        case "prompt":
            return entry.kind == "model_input" and entry.text == promise.text
        case "answer":
            return entry.kind == "model_output" and entry.text == promise.text
        case "end":
            return entry.ends_turn


def _prompts(entries: Sequence[FoundEntry]) -> Iterator[FoundEntry]:
    return (entry for entry in entries if entry.kind == "model_input")


def _short(text: str) -> str:
    return repr(text if len(text) <= 24 else f"{text[:23]}…")
