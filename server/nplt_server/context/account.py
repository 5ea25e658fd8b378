"""Why each entry is shown as it is, or not at all.

    live summary gist cut   it is shown, at that level
    system                  the instruction in force
    head                    before all turns: a summary of older ones, the live screen
    tools                   what describing the tools takes; no entry
    omitted                 older than what there is room for
    compacted               a summary stands for it
    window                  older than `max_turns` allows
    cleared                 a clear came after its turn
    later                   its turn was asked for after this one, or has not ended
    unpaired                a call without its result (yet), the other way round, or blank
    abandoned               its turn was left where the conversation went back or forked
    quarantined             a provider refused it, or what goes with it
    rolled_back             it was taken back
    not_for_models          a fact about the conversation
    not_held                older than what is in memory

Runs of entries that are left out for the same reason are one row, so that a long
conversation makes a short account.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from nplt_server.context.excuses import Excuses, LeftOut
from nplt_server.context.messages import ContextRole, ShownLevel
from nplt_server.context.scene import Asked
from nplt_server.context.views import ContextView
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.facts.entries import Entry, SystemInstructionEntry

Reason: TypeAlias = ShownLevel | Literal["system", "head", "tools"] | LeftOut

_ROLES: Final[dict[str, ContextRole]] = {
    "system_instruction": "system",
    "model_input": "model_input",
    "model_output": "model_output",
    "tool_results": "tool_result",
}
_KINDS: Final[dict[ContextRole, str]] = {role: kind for kind, role in _ROLES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryAccount:
    seq: int
    """0: no entry, but something that is sent."""
    reason: Reason
    kind: str = ""
    """Empty for a run of several kinds."""
    role: ContextRole | None = None
    level: ShownLevel | None = None
    tokens: int = 0
    last_seq: int | None = None
    """Where it stands for a run of entries."""

    @property
    def through_seq(self) -> int:
        return self.seq if self.last_seq is None else self.last_seq


def account(
    history: ConversationHistory, view: ContextView, asked: Asked = None
) -> tuple[EntryAccount, ...]:
    """Of what `Projection.context` gave for the same question; the tokens of all rows
    are the view's. Ordered by number."""
    sent = list(_sent(history, view))
    by_seq = {row.seq: row for row in sent if row.seq}
    excuses = Excuses(history, view, asked)
    rows = [row for row in sent if not row.seq]
    expected = 1
    for entry in history.entries:
        if entry.seq > expected:
            rows.append(_gap(expected, entry.seq - 1))
        known = by_seq.get(entry.seq)
        rows.append(known if known is not None else _left_out(entry, excuses))
        expected = entry.seq + 1
    # A prompt and an epoch that are not written yet.
    drafts = sorted((row for row in sent if row.seq >= expected), key=lambda row: row.seq)
    return tuple(_joined([*rows, *drafts]))


def _sent(history: ConversationHistory, view: ContextView) -> Iterator[EntryAccount]:
    """What is sent, message by message; the tools first."""
    if view.frame.tools_tokens:
        yield EntryAccount(seq=0, kind="tools", tokens=view.frame.tools_tokens, reason="tools")
    head_is_next = view.has_head
    for message, tokens in zip(view.messages, view.sizes, strict=True):
        row = EntryAccount(
            seq=message.seq,
            kind=_KINDS[message.role],
            role=message.role,
            level=message.level,
            tokens=tokens,
            reason=message.level,
        )
        if message.role == "system":
            yield replace(row, seq=_instruction_seq(history), reason="system")
        elif head_is_next:
            head_is_next = False
            yield replace(row, kind="epoch", reason="head")
        else:
            yield row


def _instruction_seq(history: ConversationHistory) -> int:
    standing = history.standing
    for place in range(len(standing) - 1, -1, -1):
        if isinstance(standing[place], SystemInstructionEntry):
            return standing[place].seq
    return 0


def _left_out(entry: Entry, excuses: Excuses) -> EntryAccount:
    role = _ROLES.get(entry.kind)
    return EntryAccount(seq=entry.seq, kind=entry.kind, role=role, reason=excuses.of(entry))


def _gap(first: int, last: int) -> EntryAccount:
    return EntryAccount(seq=first, last_seq=last, reason="not_held")


def _joined(rows: Iterable[EntryAccount]) -> Iterator[EntryAccount]:
    run: EntryAccount | None = None
    for row in rows:
        if run is not None and _continues(run, row):
            run = replace(
                run,
                last_seq=row.through_seq,
                kind=run.kind if run.kind == row.kind else "",
                role=run.role if run.role == row.role else None,
            )
            continue
        if run is not None:
            yield run
        run = row
    if run is not None:
        yield run


def _continues(run: EntryAccount, row: EntryAccount) -> bool:
    is_left_out = row.level is None and row.seq > 0
    return is_left_out and run.reason == row.reason and run.through_seq + 1 == row.seq
