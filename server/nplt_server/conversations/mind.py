"""What one conversation thinks with: its state, what a model is shown of it, what that costs.

Before each call the context is put together, and if it can't go on from what was
sent last, an epoch entry that says why is written first. Filling up is an event:
listeners may answer it (the built-in one begins a new epoch), and whatever comes
of that, the context fits. Made with a conversation's first turn or question: one
in which nothing is said has no mind.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from nplt_protocol.json_values import JsonObject
from nplt_server import debug
from nplt_server.agent_state import AgentState, Write
from nplt_server.context.fitting import ContextTooSmall
from nplt_server.context.measuring import Measure
from nplt_server.context.projection import Projection
from nplt_server.context.scene import Asked
from nplt_server.context.views import CallFrame, ContextView
from nplt_server.conversations.attaching import AttachmentReader
from nplt_server.conversations.compression import OverThreshold
from nplt_server.conversations.household import Household
from nplt_server.conversations.ledger import Ledger
from nplt_server.conversations.naming import Namer
from nplt_server.conversations.quarantine import Quarantine
from nplt_server.conversations.summarist import Summarist
from nplt_server.errors import WindowTooSmall
from nplt_server.providers.model_facts import CallRoom
from nplt_storage.conversation.views import model_name
from nplt_storage.facts.entries import (
    CompactionEntry,
    Entry,
    EpochEntry,
    ModelOutputEntry,
)

_LOOKED_BACK_MAX: Final = 200
"""Entries; a model that answered none of them starts afresh."""


class Mind:
    __slots__ = (
        "_announce",
        "_attachments",
        "_ceilings",
        "_house",
        "_ledger",
        "_namer",
        "_projection",
        "_state",
        "_summarist",
        "_write",
        "quarantine",
    )

    def __init__(
        self,
        ledger: Ledger,
        *,
        household: Household,
        write: Write,
        announce: Callable[[str, JsonObject], None],
    ) -> None:
        self._ledger = ledger
        self._house = household
        self._write = write
        self._announce = announce
        self._ceilings: dict[str, CallRoom] = {}
        self._attachments: AttachmentReader | None = None
        self._state: AgentState | None = None
        self._projection: Projection | None = None
        self.quarantine = Quarantine(lambda: ledger.history, write=write, announce=announce)
        self._summarist = Summarist(ledger, household=household, write=write, announce=announce)
        self._namer = Namer(ledger, household=household, write=write, announce=announce)

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    @property
    def household(self) -> Household:
        return self._house

    @property
    def state(self) -> AgentState:
        history = self._ledger.history  # another one, if it was read again
        if self._state is None or self._state.history is not history:
            widgets = self._house.thinking.widgets
            self._state = AgentState(history, widgets=widgets, write=self._write)
        return self._state

    @property
    def projection(self) -> Projection:
        """For who has waited for the counter."""
        history, shelf, known = self._ledger.history, self.attachments.shelf, self._projection
        if known is None or known.history is not history or known.measure.shelf is not shelf:
            thinking = self._house.thinking
            measure = Measure(thinking.counting.now, shelf=shelf)
            known = Projection(history, measure, policy=thinking.rules.policy)
            self._projection = known
        return known

    @property
    def attachments(self) -> AttachmentReader:
        if self._attachments is None or self._attachments.history is not self._ledger.history:
            self._attachments = AttachmentReader(self._ledger, self._house.files)
        return self._attachments

    async def ready(self) -> None:
        """Whoever wants a context waits here first: for the counter, and for files."""
        await self._house.thinking.counting.counter()
        await self.attachments.gather()

    # Before a call

    def frame(self, model: str, *, tokens_max: int | None = None) -> CallFrame:
        thinking = self._house.thinking
        self._remember_correction(model)
        offer = self._house.tools.offer
        facts = thinking.facts(model)
        budget = facts.budget_tokens
        corrected = thinking.counting.correction.budget_in_counted(model, budget)
        ceiling = self._ceilings.get(model)
        learned = None if ceiling is None else ceiling.context_tokens
        ceilings = [each for each in (tokens_max, learned) if each is not None]
        return CallFrame(
            # Who counts too much begins epochs a little early, and that is all.
            budget_tokens=min(budget, corrected, *ceilings),
            tools_tokens=thinking.counting.tokens_of_tools(offer) if facts.takes_tools else 0,
            offer=offer,
            threshold=thinking.rules.threshold,
            keep=thinking.rules.keep,
            takes_images=facts.takes_images,
        )

    async def prepare(
        self, turn_id: str, model: str, *, tokens_max: int | None = None
    ) -> ContextView:
        """What the next call of a turn is shown; on the way an epoch may begin."""
        await self.ready()
        frame = self.frame(model, tokens_max=tokens_max)
        draft = self._due_epoch(turn_id, frame)
        if draft is not None and draft.reason == "budget":
            await self._house.thinking.over_threshold(
                OverThreshold(session_id=self._ledger.session_id, turn_id=turn_id, answer=draft),
                self,
            )
        elif draft is not None:
            await self.begin_epoch(draft)
        if draft is not None:
            await self.attachments.gather()  # which pictures are shown depends on the epoch
        view = self.view(turn_id, frame)
        debug.context(
            "context of a call",
            session=self._ledger.session_id,
            turn=turn_id,
            messages=len(view.messages),
            tokens=view.tokens,
            budget=frame.budget_tokens,
            epoch=view.selection.epoch_seq,
            trimmed=view.is_trimmed,
        )
        return view

    def _due_epoch(self, turn_id: str, frame: CallFrame) -> EpochEntry | None:
        projection, screen = self.projection, self.state.screen()
        due = projection.due_epoch(turn_id, frame, screen=screen)
        if due is None and self.attachments.needs_epoch and projection.policy == "epochs":
            return projection.epoch_for("pictures", frame, screen=screen)
        return due

    def view(
        self, asked: Asked, frame: CallFrame, *, epoch: EpochEntry | None = None
    ) -> ContextView:
        try:
            return self.projection.context(asked, frame, epoch=epoch)
        except ContextTooSmall as error:
            raise WindowTooSmall(str(error)) from None

    def answer_tokens_max(self, model: str) -> int:
        most, ceiling = self._house.thinking.facts(model).answer_tokens, self._ceilings.get(model)
        return most if ceiling is None else min(most, ceiling.answer_tokens)

    def remember_ceiling(self, model: str, room: CallRoom) -> None:
        """Its provider refused more than that, whatever is said of its window. Not kept:
        another life finds out again, and the provider may have changed."""
        self._ceilings[model] = room.within(self._ceilings.get(model))

    def _remember_correction(self, model: str) -> None:
        """What was learned in an earlier life stands in the record: without it a model's
        budget would be another one after a restart, and a new epoch due."""
        counting = self._house.thinking.counting
        if model in counting.correction.ratios:
            return
        entries = self._ledger.history.entries
        outputs = (entries[place] for place in range(len(entries) - 1, -1, -1))
        for entry in islice(outputs, _LOOKED_BACK_MAX):
            if not isinstance(entry, ModelOutputEntry) or not (entry.sent and entry.usage):
                continue
            real = entry.usage.get("input_tokens")
            if entry.invocation and model_name(entry.invocation) == model and isinstance(real, int):
                self._house.thinking.learn(model, counted=entry.sent.tokens, real=real)
                return

    # Epochs and summaries

    async def begin_epoch(self, draft: EpochEntry) -> EpochEntry:
        return await self._write_epoch(lambda: draft)

    async def begin_asked_epoch(self, frame: CallFrame) -> EpochEntry:
        """Drafted when the pen is free: a summary was waited for, and more may have come."""
        return await self._write_epoch(lambda: self.asked_epoch(frame))

    async def forget_thoughts(self, model: str) -> None:
        """An epoch shows nothing of what a model sealed in the one before."""

        def draft() -> EpochEntry:
            screen = self.state.screen()
            return self.projection.epoch_for("reasoning", self.frame(model), screen=screen)

        await self._write_epoch(draft)

    def asked_epoch(self, frame: CallFrame) -> EpochEntry:
        return self.projection.asked_epoch(frame, screen=self.state.screen())

    async def _write_epoch(self, prepare: Callable[[], EpochEntry]) -> EpochEntry:
        epoch = await self._write(prepare)
        assert isinstance(epoch, EpochEntry)
        self._announce("epoch", {"epoch": epoch.seq, "reason": epoch.reason})
        return epoch

    def summarize_beside(self, asked: Asked, epoch: EpochEntry) -> None:
        """While the conversation goes on; once there is a summary, the next turn's
        epoch shows it."""
        self._summarist.begin(lambda: self.projection, asked, epoch)

    async def summarize(self, draft: EpochEntry) -> CompactionEntry | None:
        """For who waits for it. `None`: it did not work out, and nothing depends on it."""
        return await self._summarist.finish(lambda: self.projection, None, draft)

    def hear(self, entry: Entry) -> None:
        """Of everything that is written: a first answer may lead to a name."""
        self._namer.hear(entry)

    @property
    def is_summarizing(self) -> bool:
        return self._summarist.is_at_work or self._namer.is_at_work

    def stop_summarizing(self) -> None:
        self._summarist.stop()
        self._namer.stop()
