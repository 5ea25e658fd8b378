"""Which entries a provider's refusal may be about, so that a conversation can go on.

Where it names a message: all whose words stand in it, those of a summary and of the
live screen included; but while this very model has taken some of them before, only the
others. Where it names nothing, what has never been taken: prompts that were refused
before, with no answer since; what the tools have given since the last call; what is new
on the screen or in the head. Whether it is them shows when the model is asked without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nplt_server.context.messages import ContextMessage, ModelInputMessage, ToolResultsMessage
from nplt_server.context.screens import screen_sources
from nplt_server.context.views import ContextView
from nplt_server.errors import ProviderRefused
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.facts.entries import (
    FaultEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    NotebookEntry,
    QuarantineEntry,
    ToolResultsEntry,
    WidgetEntry,
)

_ACQUITTALS_MAX = 2
"""One may have been for another's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    seqs: tuple[int, ...] = ()
    """What to do without; never the prompt of the turn itself."""
    named: frozenset[int] = frozenset()
    """All that the refusal is about, if it names anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrutiny:
    """Of what one call was shown."""

    history: ConversationHistory
    shown: ContextView
    turn_id: str
    asked: ModelInvocationDescriptor

    def suspects(self, refusal: ProviderRefused) -> Suspects:
        if refusal.entry_seqs:
            named = dict.fromkeys(seq for each in refusal.entry_seqs for seq in self._said_at(each))
            seqs = self._but_prompt(named)
            new = tuple(self._never_taken(seqs, by=self.asked))
            return Suspects(seqs=new or seqs, named=frozenset(named))
        if not refusal.is_of_request or refusal.message_index is not None:
            return Suspects()  # or it is about the instruction, which has no entry to hide
        return Suspects(seqs=self._but_prompt(self._untried()))

    def _but_prompt(self, seqs: Iterable[int]) -> tuple[int, ...]:
        turn, hidden = self.history.turn(self.turn_id), self.history.quarantined
        own = 0 if turn is None or turn.prompt is None else turn.prompt.seq
        return tuple(seq for seq in dict.fromkeys(seqs) if seq != own and seq not in hidden)

    # Where a message is named

    def _said_at(self, seq: int) -> Iterator[int]:
        """The entries whose words stand where that one is shown."""
        head = self._head()
        if head is not None and head.seq == seq:
            yield from self._in_head()
            return
        yield seq
        message = next((each for each in self.shown.messages if each.seq == seq), None)
        if _carries_screen(message):
            yield from _on_screen(self.history, before=seq)

    def _head(self) -> ContextMessage | None:
        if not self.shown.has_head:
            return None
        return next(each for each in self.shown.messages if each.role != "system")

    def _in_head(self) -> Iterator[int]:
        if self.shown.selection.compaction is not None:
            yield self.shown.selection.compaction.seq
        yield from screen_sources(self.history).values()

    def _never_taken(
        self, seqs: Iterable[int], *, by: ModelInvocationDescriptor | None
    ) -> Iterator[int]:
        """By that model, or by none."""
        last = next(_outputs(self.history, by), None)
        compactions = {entry.seq for entry in self.history.compactions}
        for seq in seqs:
            if last is None:
                yield seq
            elif last.sent is None:
                if seq > last.seq:
                    yield seq
            elif seq > (last.sent.epoch_seq if seq in compactions else last.sent.head_seq):
                yield seq

    # Where nothing is named

    def _untried(self) -> Iterator[int]:
        yield from self._never_taken(self._in_head(), by=None)
        turn = self.history.turn(self.turn_id)
        if turn is not None and isinstance(turn.entries[-1], ToolResultsEntry):
            yield turn.entries[-1].seq
            return
        acquitted = Counter(
            entry.target_seq
            for entry in self.history.standing
            if isinstance(entry, QuarantineEntry) and entry.lifted
        )
        for seq in self._refused_in_vain():
            if acquitted[seq] < _ACQUITTALS_MAX:
                yield seq

    def _refused_in_vain(self) -> Iterator[int]:
        for turn in reversed(self.history.shown_turns):
            if any(isinstance(entry, ModelOutputEntry) for entry in turn.entries):
                return  # whoever answered took all that was said before
            was_refused = isinstance(turn.end, FaultEntry) and turn.end.of_request
            if was_refused and turn.prompt is not None:
                yield turn.prompt.seq


def _carries_screen(message: ContextMessage | None) -> bool:
    match message:
        case ModelInputMessage() | ToolResultsMessage():
            return message.live_screen is not None
        case _:
            return False


def _on_screen(history: ConversationHistory, *, before: int) -> Iterator[int]:
    """The entries that held when that one was written."""
    known = {seq for seq in screen_sources(history).values() if seq < before}
    latest: dict[str, int] = {}
    for entry in history.standing:
        if entry.seq >= before:
            break
        if isinstance(entry, NotebookEntry | WidgetEntry):
            latest[_widget(entry)] = entry.seq
    yield from known | {*latest.values()}


def _widget(entry: NotebookEntry | WidgetEntry) -> str:
    return entry.widget if isinstance(entry, WidgetEntry) else entry.kind


def _outputs(
    history: ConversationHistory, by: ModelInvocationDescriptor | None
) -> Iterator[ModelOutputEntry]:
    """Newest first."""
    return (
        entry
        for entry in reversed(history.standing)
        if isinstance(entry, ModelOutputEntry) and by in (None, entry.invocation)
    )
