"""Quarantines entries that a provider refuses, so that the conversation can go on.

Only a refusal of content quarantines anything. One about the shape of the request, a parameter,
its size, tools or kinds of content is for `providers.refusal_rules`. If it is
unclear what a refusal is about, nothing is quarantined before the same request was refused twice.

Models are not shown a quarantined entry. A prompt or an answer is left out whole. Tool
calls and their results keep their structure but lose their text. The state of the notebook
or of a widget is left out until its next change. A summary is ignored. The system
instruction is never quarantined, because it may say what a model must not do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, Literal, TypeAlias

from nplt_protocol import JsonObject
from nplt_server.context.messages import ModelInputMessage, ToolResultsMessage
from nplt_server.context.screens import screen_sources
from nplt_server.context.selection import ContextView
from nplt_server.conversations.record import ConversationRecord
from nplt_server.errors import ProviderRefused
from nplt_storage.entries import (
    CompactionEntry,
    FaultEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    NotebookEntry,
    QuarantineEntry,
    ToolResultsEntry,
    WidgetEntry,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.turns import ContextEntry

RefusedPart: TypeAlias = Literal["", "pictures"]
_RELEASES_MAX: Final = 2
"""An entry that was quarantined on a guess and released this often is not quarantined on
a guess again. One release is not enough: another entry may have caused that refusal."""
_NOTHING: Final[frozenset[int]] = frozenset()


async def quarantine(
    record: ConversationRecord, seq: int, reason: str, *, provider: str, part: RefusedPart = ""
) -> bool:
    """Writes a quarantine entry, which a rollback can undo like any other entry.

    Returns False if it is quarantined already, or is of a kind that can't be.
    """
    async with record.exclusive():
        hidden = record.history.hidden_from(provider)
        if seq in hidden.entries or (part and seq in hidden.pictures):
            return False
        if not _can_quarantine(record.history, seq):
            return False
        entry = QuarantineEntry(
            target_seq=seq,
            code="refused_by_provider",
            content=reason,
            provider=provider,
            part=part,
        )
        await record.append(entry)
    _announce(record, "quarantined", entry)
    return True


async def release(
    record: ConversationRecord, seq: int, code: str, reason: str, *, provider: str = ""
) -> bool:
    """Shows the entry to models again: to those of the provider, or to all. Returns
    False if nothing hides it from them."""
    async with record.exclusive():
        known = record.history.quarantines.get(seq, ())
        if not any(not provider or each.provider == provider for each in known):
            return False
        entry = QuarantineEntry(
            target_seq=seq, code=code, content=reason, lifted=True, provider=provider
        )
        await record.append(entry)
    _announce(record, "released", entry)
    return True


def _announce(record: ConversationRecord, event: str, entry: QuarantineEntry) -> None:
    details: JsonObject = {"seq": entry.target_seq, "code": entry.code, "reason": entry.content}
    if entry.provider:
        details["provider"] = entry.provider
    if entry.part:
        details["part"] = entry.part
    record.broadcast.announce(event, details)


def _can_quarantine(history: ConversationHistory, seq: int) -> bool:
    entry = next(iter(history.entries_after(seq - 1) or ()), None)
    if entry is not None:
        return isinstance(entry, ContextEntry | NotebookEntry | WidgetEntry | CompactionEntry)
    # An entry older than those in memory may still be shown: a summary, or the entry that
    # holds the current state of the notebook or of a widget.
    newest = [compaction.seq for compaction in history.compactions]
    return seq in screen_sources(history).values() or seq in newest


class Refusals:
    """Quarantines the entries that calls of one turn are refused for.

    If the model then answers, or refuses another message, the quarantined entries were the
    cause and stay quarantined. If the model refuses the same message again, other entries
    shown in that message are quarantined too. When none are left, the entries quarantined so
    far are released and the turn fails. If the refused message is the current prompt,
    the prompt is quarantined and the turn fails.
    """

    def __init__(self, record: ConversationRecord, prompt: ModelInputEntry) -> None:
        self._record = record
        self._prompt = prompt
        self._provider = self._model = ""
        self._unconfirmed: list[int] = []
        """Entries quarantined in this turn that are not known to be the cause yet."""
        self._named = _NOTHING
        """The entries that the refusal named; empty if it named none."""

    async def quarantine_for(
        self,
        refusal: ProviderRefused,
        view: ContextView | None,
        invocation: ModelInvocationDescriptor,
        *,
        may_repeat: bool,
    ) -> tuple[int, ...]:
        """Quarantines what the refused call may have been refused for, and gives the entries;
        none if calling again can't help. `may_repeat`: whether the call may be repeated."""
        if not (refusal.content_refused or refusal.cause_unclear):
            return ()
        self._provider = invocation.provider
        self._model = f"{invocation.provider}/{invocation.model}"
        reason = f"{self._model}: {refusal}"
        candidates, named = self._candidates(refusal, view, invocation)
        both_name = bool(self._named) and bool(named)
        is_about_something_else = (
            self._named.isdisjoint(named) if both_name else bool(self._named) != bool(named)
        )
        if is_about_something_else:
            if not self._named:
                await self._release_all()
                candidates, named = self._candidates(refusal, view, invocation)
            self.confirm_quarantined()
        quarantined: list[int] = []
        part = refusal.refused_part
        if may_repeat:
            for seq in candidates:
                if await quarantine(self._record, seq, reason, provider=self._provider, part=part):
                    quarantined.append(seq)
        if quarantined:
            self._unconfirmed += quarantined
            self._named |= named
            return tuple(quarantined)
        if self._prompt.seq in named:
            await self._release_all()
            await quarantine(self._record, self._prompt.seq, reason, provider=self._provider)
            sentence = (
                f"{refusal.sentence}: it is this prompt, so models of {self._provider} are not "
                "shown it again; use other words"
            )
            raise replace(refusal, sentence=sentence)
        if named & self._named:
            await self._release_all()
        return ()

    async def release_guesses(self) -> None:
        """Releases entries that were quarantined on a guess: without an answer it is not
        known whether they were the cause."""
        if not self._named:
            await self._release_all()

    def confirm_quarantined(self) -> None:
        """Keeps the entries in quarantine: the call without them was not refused for the
        same reason, so they were the cause."""
        self._unconfirmed = []
        self._named = _NOTHING

    async def _release_all(self) -> None:
        reason = f"it is not shown that {self._model} refuses it"
        for seq in self._unconfirmed:
            await release(self._record, seq, "not_the_cause", reason, provider=self._provider)
        self._unconfirmed = []

    # Finding the entries that a refusal may be about

    def _candidates(
        self,
        refusal: ProviderRefused,
        view: ContextView | None,
        invocation: ModelInvocationDescriptor,
    ) -> tuple[tuple[int, ...], frozenset[int]]:
        """The entries to quarantine (never the turn's own prompt), and all entries that the
        refusal names.

        If the refusal names a message, the candidates are the entries whose text is in that
        message, including the text of a summary and of the live screen. Entries that this
        model has accepted before are candidates only if there are no others. If the refusal
        names no message, the candidates are entries that no model has accepted yet: earlier
        prompts that were refused, the latest tool results, new states of widgets.
        """
        history = self._record.history
        if view is None:
            return (), _NOTHING
        if refusal.refused_part:
            return self._with_pictures(refusal, view, invocation), _NOTHING
        if refusal.entry_seqs:
            named = [
                seq
                for shown_seq in refusal.entry_seqs
                for seq in _entries_shown_at(history, view, shown_seq)
            ]
            seqs = self._without_prompt(named)
            new = tuple(_never_accepted(history, seqs, by=invocation))
            return new or seqs, frozenset(named)
        if refusal.message_index is not None:
            return (), _NOTHING  # it is about the system instruction
        return self._without_prompt(self._not_yet_accepted(history, view)), _NOTHING

    def _with_pictures(
        self,
        refusal: ProviderRefused,
        view: ContextView,
        invocation: ModelInvocationDescriptor,
    ) -> tuple[int, ...]:
        """The entry whose pictures may be refused, the prompt's own included: that which the
        refusal names, or else the newest that this model has not accepted."""
        shown = [
            message.seq
            for message in view.messages
            if isinstance(message, ModelInputMessage | ToolResultsMessage) and message.images
        ]
        named = [seq for seq in shown if seq in refusal.entry_seqs]
        new = list(_never_accepted(self._record.history, shown, by=invocation))
        return tuple((named or new or shown)[-1:])

    def _without_prompt(self, seqs: Iterable[int]) -> tuple[int, ...]:
        quarantined = self._record.history.hidden_from(self._provider).entries
        own = self._prompt.seq
        return tuple(seq for seq in dict.fromkeys(seqs) if seq != own and seq not in quarantined)

    def _not_yet_accepted(self, history: ConversationHistory, view: ContextView) -> Iterator[int]:
        yield from _never_accepted(history, _in_head(history, view), by=None)
        turn = history.turn(self._prompt.turn_id or "")
        if turn is not None and isinstance(turn.entries[-1], ToolResultsEntry):
            yield turn.entries[-1].seq
            return
        releases = Counter(
            entry.target_seq
            for entry in history.active
            if isinstance(entry, QuarantineEntry) and entry.lifted
        )
        for turn in reversed(history.shown_turns):
            if any(isinstance(entry, ModelOutputEntry) for entry in turn.entries):
                return  # the model that answered accepted all earlier entries
            was_refused = isinstance(turn.end, FaultEntry) and turn.end.of_request
            if was_refused and turn.prompt and releases[turn.prompt.seq] < _RELEASES_MAX:
                yield turn.prompt.seq


def _entries_shown_at(history: ConversationHistory, view: ContextView, seq: int) -> Iterator[int]:
    """The entries whose text is in the message that shows entry `seq`."""
    if view.has_head and seq == next(m.seq for m in view.messages if m.role != "system"):
        yield from _in_head(history, view)
        return
    yield seq
    message = next((each for each in view.messages if each.seq == seq), None)
    if isinstance(message, ModelInputMessage | ToolResultsMessage) and message.live_screen:
        yield from _on_screen(history, before=seq)


def _in_head(history: ConversationHistory, view: ContextView) -> Iterator[int]:
    if view.selection.compaction is not None:
        yield view.selection.compaction.seq
    yield from screen_sources(history).values()


def _on_screen(history: ConversationHistory, *, before: int) -> Iterator[int]:
    """The notebook and widget entries that were current when entry `before` was written."""
    latest: dict[str, int] = {}
    for entry in history.active:
        if entry.seq >= before:
            break
        if isinstance(entry, NotebookEntry | WidgetEntry):
            latest[entry.widget if isinstance(entry, WidgetEntry) else entry.kind] = entry.seq
    yield from {seq for seq in screen_sources(history).values() if seq < before} | {
        *latest.values()
    }


def _never_accepted(
    history: ConversationHistory, seqs: Iterable[int], *, by: ModelInvocationDescriptor | None
) -> Iterator[int]:
    """The entries that the model `by` (any model if `None`) has not accepted: it gave no answer
    after them."""
    outputs = (e for e in reversed(history.active) if isinstance(e, ModelOutputEntry))
    last = next((output for output in outputs if by in (None, output.invocation)), None)
    compactions = {entry.seq for entry in history.compactions}
    for seq in seqs:
        if last is None:
            accepted_through = 0
        elif last.sent is None:
            accepted_through = last.seq
        else:
            accepted_through = last.sent.epoch_seq if seq in compactions else last.sent.head_seq
        if seq > accepted_through:
            yield seq
