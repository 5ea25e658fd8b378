"""The rows of a context's account, as JSON and within what one message holds.

If they don't fit, long texts are cut, all to the same size; then the newest keep
theirs and older ones are told without; then older rows are told in runs. A run has
the tokens of all its rows, so whatever is done, all rows sum up to what is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

import orjson

from nplt_protocol.json_values import JsonObject
from nplt_server.context.account import EntryAccount
from nplt_server.context.messages import ContextMessage, SystemMessage
from nplt_server.context.views import ContextView
from nplt_server.conversations.account_words import fair_share, said_in, text_sizes

Run: TypeAlias = tuple[EntryAccount, ...]
"""What is told as one row; most are of one."""
_Joins: TypeAlias = Callable[[EntryAccount, EntryAccount], bool]
_Name: TypeAlias = tuple[int, str]
"""The number of a row, or what it is where there is no entry."""
_Messages: TypeAlias = dict[_Name, ContextMessage]
_T = TypeVar("_T")

_ROLES: Final = {
    "system": "system",
    "model_input": "user",
    "model_output": "assistant",
    "tool_result": "tool",
}
_MIXED: Final = "mixed"
_TOLD_ALONE: Final = ("system", "head", "tools")
"""There are only ever a few of them, and everybody wants to see them."""


def rows_within(
    rows: Sequence[EntryAccount], view: ContextView, *, bytes_max: int
) -> tuple[JsonObject, ...]:
    messages = _messages(rows, view)
    whole = _whole(rows, messages, bytes_max)
    if whole is not None:
        return whole
    # Half for the rows themselves: an account in which nobody says anything is of no use.
    runs = _runs_within(rows, bytes_max // 2)
    told = [_as_json(run) for run in runs]
    room = bytes_max - _total(told)
    said = [messages.get(_name(run[0])) if len(run) == 1 else None for run in runs]
    text_bytes_max = fair_share([size for one in said for size in text_sizes(one)], room)
    for place in range(len(told) - 1, -1, -1):
        words = said_in(said[place], text_bytes_max)
        size = written_size(words)
        if size <= room:
            told[place] |= words
            room -= size
    return tuple(told)


def written_size(row: JsonObject) -> int:
    """With a comma; brackets count as they are written for clients that would take
    them for markup."""
    data = orjson.dumps(row)
    return len(data) + 1 + 5 * data.count(b"[")


def _total(rows: Iterable[JsonObject]) -> int:
    return sum(map(written_size, rows))


def _whole(
    rows: Sequence[EntryAccount], messages: _Messages, bytes_max: int
) -> tuple[JsonObject, ...] | None:
    told: list[JsonObject] = []
    for row in rows:
        told.append(_as_json((row,)) | said_in(messages.get(_name(row)), None))
        bytes_max -= written_size(told[-1])
        if bytes_max < 0:
            return None
    return tuple(told)


def _messages(rows: Sequence[EntryAccount], view: ContextView) -> _Messages:
    by_seq: dict[int, ContextMessage] = {one.seq: one for one in view.messages if one.seq}
    first = [one for one in view.messages[:2] if isinstance(one, SystemMessage)]
    head = view.messages[len(first)] if view.has_head else None
    found: _Messages = {}
    for row in rows:
        message = by_seq.get(row.seq)
        if row.reason == "system":
            message = first[0] if first else None
        elif row.reason == "head":
            message = head
        if row.level is not None and message is not None:
            found[_name(row)] = message
    return found


def _name(row: EntryAccount) -> _Name:
    return row.seq, row.reason


def _runs_within(rows: Sequence[EntryAccount], bytes_max: int) -> list[Run]:
    """The newest rows one by one, older ones together: those shown alike if that is
    enough, else whatever stands side by side."""
    sizes = [written_size(_as_json((row,))) for row in rows]
    if sum(sizes) <= bytes_max:
        return [(row,) for row in rows]
    first, room = len(rows), bytes_max // 2
    while sizes[first - 1] <= room:
        first -= 1
        room -= sizes[first]
    older = _joined(rows[:first], _are_shown_alike)
    if sum(sizes[first:]) + _total(map(_as_json, older)) > bytes_max:
        older = _joined(rows[:first], lambda _row, _next: True)
    return [*older, *((row,) for row in rows[first:])]


def _joined(rows: Iterable[EntryAccount], join: _Joins) -> list[Run]:
    runs: list[list[EntryAccount]] = []
    for row in rows:
        if runs and _may_join(runs[-1][-1], row) and join(runs[-1][-1], row):
            runs[-1].append(row)
        else:
            runs.append([row])
    return [tuple(run) for run in runs]


def _may_join(row: EntryAccount, following: EntryAccount) -> bool:
    is_told_alone = row.reason in _TOLD_ALONE or following.reason in _TOLD_ALONE
    return not is_told_alone and row.seq > 0 and row.through_seq + 1 == following.seq


def _are_shown_alike(row: EntryAccount, following: EntryAccount) -> bool:
    return row.level is not None and (row.level, row.reason) == (following.level, following.reason)


def _as_json(run: Run) -> JsonObject:
    first, last = run[0], run[-1]
    kind, role, reason = first.kind, first.role, str(first.reason)
    level = str(first.level or "")
    if len(run) > 1:
        kind = _common((row.kind for row in run), "")
        role = _common((row.role for row in run), None)
        level = _common((str(row.level or "") for row in run), _MIXED)
        reason = _common((str(row.reason) for row in run), _MIXED)
    out: JsonObject = {
        "seq": first.seq,
        "kind": kind,
        "tokens": sum(row.tokens for row in run),
    }
    if last.through_seq != first.seq:
        out["through_seq"] = last.through_seq
    if role is not None:
        out["role"] = _ROLES[role]
    if level:
        out["detail"] = level
    if reason != "live":
        out["reason"] = reason
    return out


def _common(values: Iterable[_T], otherwise: _T) -> _T:
    found = set(values)
    return found.pop() if len(found) == 1 else otherwise
