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
    quarantined             a provider refused it: it is left out, or its words are
    rolled_back             it was taken back
    not_for_models          a fact about the conversation
    not_held                older than what is in memory

Runs of entries that are left out for the same reason are one row, so that a long
conversation makes a short account.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    run: _Run | None = None
    expected = 1
    for entry in history.entries:
        seq = entry.seq
        reason: LeftOut | None = None if seq in by_seq else excuses.of(entry)
        # Nearly all of a long conversation goes on in the run it is in.
        if run is not None and run.reason == reason and seq == expected:
            run.through(entry)
            expected = seq + 1
            continue
        if run is not None:
            rows.append(run.row)
        if seq > expected:
            rows.append(_gap(expected, seq - 1))
        run = None if reason is None else _Run(entry, reason)
        if reason is None:
            rows.append(by_seq[seq])
        expected = seq + 1
    if run is not None:
        rows.append(run.row)
    # A prompt and an epoch that are not written yet.
    drafts = sorted((row for row in sent if row.seq >= expected), key=lambda row: row.seq)
    return (*rows, *drafts)


class _Run:
    """Entries one after the other that are left out for the same reason."""

    __slots__ = ("first_seq", "kind", "last_seq", "reason")

    def __init__(self, entry: Entry, reason: LeftOut) -> None:
        self.first_seq = self.last_seq = entry.seq
        self.kind: str = entry.kind
        self.reason: LeftOut = reason

    def through(self, entry: Entry) -> None:
        self.last_seq = entry.seq
        if entry.kind != self.kind:
            self.kind = ""

    @property
    def row(self) -> EntryAccount:
        return EntryAccount(
            seq=self.first_seq,
            last_seq=self.last_seq if self.last_seq > self.first_seq else None,
            kind=self.kind,
            role=_ROLES.get(self.kind),
            reason=self.reason,
        )


def _sent(history: ConversationHistory, view: ContextView) -> Iterator[EntryAccount]:
    """What is sent, message by message; the tools first."""
    if view.frame.tools_tokens:
        yield EntryAccount(seq=0, kind="tools", tokens=view.frame.tools_tokens, reason="tools")
    head_is_next = view.has_head
    quarantined = history.quarantined
    for message, tokens in zip(view.messages, view.sizes, strict=True):
        row = EntryAccount(
            seq=message.seq,
            kind=_KINDS[message.role],
            role=message.role,
            level=message.level,
            tokens=tokens,
            # That a tool ran is shown, without what was said and given.
            reason="quarantined" if message.seq in quarantined else message.level,
        )
        if message.role == "system":
            yield replace(row, seq=_instruction_seq(history), reason="system")
        elif head_is_next:
            head_is_next = False
            yield replace(row, seq=view.selection.epoch_seq, kind="epoch", reason="head")
        else:
            yield row


def _instruction_seq(history: ConversationHistory) -> int:
    standing = history.standing
    instructions = (entry.seq for entry in standing if isinstance(entry, SystemInstructionEntry))
    return max(instructions, default=0)


def _gap(first: int, last: int) -> EntryAccount:
    return EntryAccount(seq=first, last_seq=last, reason="not_held")
