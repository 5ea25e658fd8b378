"""Checks the entries of a turn, however it ended.

A turn is a prompt, then outputs, each of whose calls has exactly one result with the same id in the
results that follow, then one end and nothing after it. What the client received (a receipt, one
TURN_FINISHED) must agree. Such a record can be sent to every provider. These are pure functions
with tests of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeAlias

from faults.stored import ends_turn

_Entries: TypeAlias = Sequence[Mapping[str, Any]]
_SAID = ("model_input", "model_output", "tool_results", "fault")
"""Entries about the conversation may come between these."""


@dataclass(slots=True, kw_only=True)
class ClientTurn:
    """An accepted prompt, and every end of its turn that was received."""

    session_id: str
    turn_id: str
    seq: int
    text: str
    ends: list[tuple[str, int]] = field(default_factory=list)
    """The state and sequence number of each TURN_FINISHED."""


def broken_turns(turns: Sequence[ClientTurn], records: Mapping[str, _Entries]) -> Iterator[str]:
    """The complaints, one sentence each."""
    yield from broken_record(records)
    found = _turns(records)
    for turn in turns:
        yield from _as_received(turn, found.get(turn.turn_id, []))
    for turn_id in found.keys() - {turn.turn_id for turn in turns}:
        yield f"turn {turn_id} is there, and nobody was told of it"


def broken_record(records: Mapping[str, _Entries]) -> Iterator[str]:
    """The complaints about the record alone."""
    yield from _numbers(records)
    for turn_id, entries in _turns(records).items():
        yield from (f"turn {turn_id}: {complaint}" for complaint in _within(entries))


def _turns(records: Mapping[str, _Entries]) -> dict[str, list[Mapping[str, Any]]]:
    return {
        turn_id: entries
        for session in records.values()
        for turn_id, entries in _by_turn(session).items()
    }


def unended(turns: Sequence[ClientTurn]) -> Iterator[str]:
    for turn in turns:
        if len(turn.ends) != 1:
            yield f"turn {turn.turn_id} had {len(turn.ends)} TURN_FINISHED"


def unpaired(rows: _Entries) -> Iterator[str]:
    """The calls without a result and results without a call, which providers refuse."""
    calls = Counter(_ids(row.get("tool_calls", ()) for row in rows))
    results = Counter(_ids(row.get("results", ()) for row in rows))
    for call_id in sorted(calls.keys() | results.keys()):
        if (calls[call_id], results[call_id]) != (1, 1):
            yield f"call {call_id} is shown {calls[call_id]}, its result {results[call_id]} times"


def _ids(groups: Iterable[Iterable[Mapping[str, Any]]]) -> Iterator[str]:
    return (str(one["tool_call_id"]) for group in groups for one in group)


def _numbers(records: Mapping[str, _Entries]) -> Iterator[str]:
    for session_id, entries in records.items():
        if [entry["seq"] for entry in entries] != list(range(1, len(entries) + 1)):
            yield f"the entries of {session_id} are not numbered from 1 to {len(entries)}"


def _by_turn(entries: _Entries) -> dict[str, list[Mapping[str, Any]]]:
    complaint = [entry for entry in entries if entry.get("turn_id") and entry["kind"] in _SAID]
    complaint.sort(key=lambda entry: str(entry["turn_id"]))  # stable: their order stays
    return {
        turn_id: list(of_turn)
        for turn_id, of_turn in groupby(complaint, key=lambda entry: str(entry["turn_id"]))
    }


def _as_received(turn: ClientTurn, entries: _Entries) -> Iterator[str]:
    name = f"turn {turn.turn_id} ({turn.text[:24]!r})"
    prompts = [(e["seq"], e["content"]) for e in entries if e["kind"] == "model_input"]
    if prompts != [(turn.seq, turn.text)]:
        yield f"{name}: accepted as entry {turn.seq}, there are {prompts}"
    ends = [(_state(entry), entry["seq"]) for entry in entries if ends_turn(dict(entry))]
    if ends != turn.ends[:1]:
        yield f"{name}: told to have ended as {turn.ends}, there are {ends}"


def _state(entry: Mapping[str, Any]) -> str:
    return str(entry.get("state") or "completed")


def _within(entries: _Entries) -> Iterator[str]:
    if entries[0]["kind"] != "model_input":
        yield f"begins with {entries[0]['kind']}, entry {entries[0]['seq']}"
    ends = [place for place, entry in enumerate(entries) if ends_turn(dict(entry))]
    if ends != [len(entries) - 1]:
        yield f"has {len(ends)} ends, and should have one, at its end"
    open_calls: list[str] = []
    for entry in entries:
        ids = [call["tool_call_id"] for call in entry["tool_calls"]]
        if entry["kind"] == "tool_results":
            if ids != open_calls or not ids:
                yield f"entry {entry['seq']} has results of {ids} for calls of {open_calls}"
            open_calls = []
            continue
        if open_calls:
            yield f"calls {open_calls} have no result before entry {entry['seq']}"
        open_calls = ids
    if open_calls:
        yield f"calls {open_calls} have no result"
