"""Prepares the context of each call of one conversation.

Holds the attachments in the context, and window sizes learned from refusals. Before a call it
checks the tokens, and writes an epoch entry if the context can't continue the last one. It calls
no model: summaries are requested from a `Compressible`.

Work that takes long in a long conversation runs in a thread (`compute`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import Final, TypeVar

from msgspec.structs import replace

from nplt_protocol.json_text import JsonObject
from nplt_server import logs
from nplt_server.context.epochs import RequestedReason
from nplt_server.context.projection import Projection
from nplt_server.context.selection import CallBudget, ContextView, PromptReference
from nplt_server.context.steps import Measure
from nplt_server.conversations.agent_state import AgentState
from nplt_server.conversations.attachments_shown import AttachmentReader
from nplt_server.conversations.record import QUICK_ENTRIES_MAX, ConversationRecord
from nplt_server.conversations.services import (
    Compressible,
    ContextServices,
    OverThreshold,
    Services,
)
from nplt_server.providers import CallRoom
from nplt_server.tools import ToolOffer
from nplt_server.tools.client_tools import offer_for
from nplt_storage.entries import (
    Entry,
    EpochEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ToolResultsEntry,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.messages import model_name

log = logging.getLogger(__name__)

_ENTRIES_SEARCHED_MAX: Final = 200
"""How many of the newest entries are searched for a model's last reported token count."""
_QUICK_CHARACTERS_MAX: Final = 64 * 1024
"""The most new characters that are counted without a thread."""
_QUICK_DIGEST_MAX: Final = 16 * 1024
"""The most characters that are digested without a thread."""

_TOOLS_SHARE_MAX: Final = 2 / 3
"""The largest share of a window that tools may fill. Beyond it too little is left for a prompt, and
the model is called without tools."""

_T = TypeVar("_T")


class ContextManager:
    def __init__(self, record: ConversationRecord, state: AgentState, services: Services) -> None:
        self.record = record
        self.state = state
        self._files = services.files
        self._services = services
        self._ceilings: dict[str, CallRoom] = {}
        self._corrections_loaded: set[str] = set()
        """Models whose token correction was searched for in the record."""
        self._without_tools: set[str] = set()
        """Models whose windows have no room for tools, and that were called without them."""
        self._last_offer: tuple[ModelInputEntry, ToolOffer, ToolOffer] | None = None
        """The last prompt that brought tools, the server's tools then, and what was offered."""
        self._attachments: AttachmentReader | None = None
        self._computed: tuple[ConversationHistory | None, int] = (None, 0)
        """The history used in the last computation, and its `head_seq` then."""
        self._is_computing = False
        """Whether a thread is using the projection."""

    @property
    def services(self) -> ContextServices:
        return self._services.context

    @property
    def projection(self) -> Projection:
        """Available after `ready`."""
        self._update_measure()
        return self.state.projection

    def expected_projection(self) -> Projection:
        """The projection of the history that the next entry will follow."""
        current, history = self.projection, self.record.expected_history()
        if history is current.history:
            return current
        return Projection(history, current.measure, policy=self.services.rules.policy)

    def _update_measure(self) -> None:
        """Uses the loaded token counter and the current attachments. A history that was read
        again gets a new measure with them, because the old one may hold erased text."""
        contents = self.attachments.contents
        if self.state.measure.attachments is not contents:
            self.state.measure = Measure(self.services.counting.now, attachments=contents)

    @property
    def attachments(self) -> AttachmentReader:
        reader = self._attachments
        if reader is None or reader.history is not self.record.history:
            reader = self._attachments = AttachmentReader(self.record, self._files)
        return reader

    async def ready(self) -> None:
        """Loads the token counter and the attached files. Call it before making a context."""
        await self.services.counting.counter()
        await self.attachments.gather()

    async def compute(self, work: Callable[[], _T], *, characters: int = 0) -> _T:
        """Runs work that uses the projection: at once if it is quick, else in a thread. Meanwhile
        no entry is written, and no other task uses the projection. `characters`: the length of
        texts that are not in the history."""
        history = self.record.history
        entries = history.entries
        is_quick = not self._is_computing and len(entries) <= QUICK_ENTRIES_MAX
        if is_quick:  # whether all that is in memory is counted and digested quickly
            characters += sum(map(_characters_of, entries))
            is_quick = characters <= _QUICK_DIGEST_MAX
        self._computed = (history, history.head_seq)
        if is_quick:
            return work()
        async with self.record.exclusive():
            self._is_computing = True
            try:
                return await self.record.in_thread(work)
            finally:
                self._is_computing = False

    def _only_grows(self, prompt_ref: PromptReference, call_budget: CallBudget) -> bool:
        """Whether the context of that call only adds a little to the last one, however long that
        was, so that neither an epoch is due nor a thread is needed."""
        history = self.record.history
        if self._is_computing:
            return False
        through = self._computed[1] if self._computed[0] is history else 0
        if not through:
            return False
        new = 0
        for entry in history.newest_after(through):
            new += _characters_of(entry)
            if new > _QUICK_CHARACTERS_MAX:
                break
        return new <= _QUICK_CHARACTERS_MAX and self.projection.only_grows(
            prompt_ref, call_budget, characters=new
        )

    # Before a call

    def call_budget(
        self,
        model: str,
        *,
        prompt: ModelInputEntry | None = None,
        tokens_max: int | None = None,
    ) -> CallBudget:
        """`prompt`: the one that is answered, because it may bring tools of its own."""
        services = self.services
        offer = self._services.tools.offer
        if prompt is not None and (prompt.tools or prompt.offer):
            offer = self._offer_for(prompt, offer)
        facts = services.models.facts(model)
        if facts.counts_tokens:
            self._load_correction(model)
        budget = facts.budget_tokens
        # Counting too many tokens only makes epochs begin a little early.
        budget = min(budget, services.counting.correction.budget_in_counted(model, budget))
        ceiling = self._ceilings.get(model)
        if ceiling is not None:
            budget = min(budget, ceiling.context_tokens)
        if tokens_max is not None:
            budget = min(budget, tokens_max)
        tools_tokens = 0
        if facts.takes_tools:
            tools_tokens = services.counting.tokens_of_tools(offer.digest, offer.texts)
            if tools_tokens > _TOOLS_SHARE_MAX * budget:
                offer, tools_tokens = ToolOffer(), 0
        return CallBudget(
            budget_tokens=budget,
            tools_tokens=tools_tokens,
            offer=offer,
            threshold=services.rules.threshold,
            keep=services.rules.keep,
            takes_images=facts.takes_images,
            provider=model.partition("/")[0],
            takes_pdfs=facts.takes_pdfs,
        )

    def _offer_for(self, prompt: ModelInputEntry, own: ToolOffer) -> ToolOffer:
        known = self._last_offer
        if known is None or known[0] is not prompt or known[1] is not own:
            known = self._last_offer = (prompt, own, offer_for(prompt, own))
        return known[2]

    async def prepare(
        self,
        prompt: ModelInputEntry,
        model: str,
        compressible: Compressible,
        *,
        tokens_max: int | None = None,
    ) -> ContextView:
        """The context of the next call of the prompt's turn. Writes an epoch entry first if one is
        due."""
        turn_id = prompt.turn_id or ""
        await self.ready()
        call_budget = self.call_budget(model, prompt=prompt, tokens_max=tokens_max)
        view = await self._view_or_epoch(turn_id, call_budget)
        if isinstance(view, EpochEntry):
            view = await self._view_after_epoch(view, turn_id, call_budget, compressible)
        if logs.context.on:
            logs.context(
                "context of a call",
                session=self.record.session_id,
                turn=turn_id,
                messages=len(view.messages),
                tokens=view.tokens,
                budget=call_budget.budget_tokens,
                epoch=view.selection.epoch_seq,
                trimmed=view.is_trimmed,
            )
        return view

    async def _view_after_epoch(
        self,
        due: EpochEntry,
        turn_id: str,
        call_budget: CallBudget,
        compressible: Compressible,
    ) -> ContextView:
        """Begins the epoch, and makes the context in it, which says what it shortens."""
        earlier = self.record.history.epoch
        view: ContextView | EpochEntry = due
        while isinstance(view, EpochEntry):
            await self._begin_due_epoch(view, turn_id, compressible)
            head_seq = self.record.history.head_seq
            await self.ready()  # which images are shown depends on the epoch
            view = await self.view(turn_id, call_budget)
            if view.head_seq != head_seq:  # an entry was written meanwhile
                view = await self._view_or_epoch(turn_id, call_budget)
        return replace(view, shortened=_newly_shortened(self.record.history, earlier))

    async def _view_or_epoch(
        self, turn_id: str, call_budget: CallBudget
    ) -> ContextView | EpochEntry:
        """The next context, or the epoch to begin before it.

        Tokens are counted by the local tokenizer (by characters ÷ 2.5 where there is
        none), corrected by what the provider reported for earlier calls.
        """
        needs_epoch = self.attachments.needs_epoch

        def decide() -> ContextView | EpochEntry:
            projection = self.projection
            due = projection.due_epoch(turn_id, call_budget, screen=self.state.screen)
            if due is None and needs_epoch and projection.policy == "epochs":
                due = projection.epoch_for("pictures", call_budget, screen=self.state.screen())
            return due or projection.context(turn_id, call_budget)

        if not self._only_grows(turn_id, call_budget):
            return await self.compute(decide)
        if needs_epoch:
            return decide()
        return self._grown_view(turn_id, call_budget)

    async def _begin_due_epoch(
        self, draft: EpochEntry, turn_id: str, compressible: Compressible
    ) -> None:
        """Begins the epoch. If it is due because the context is over the threshold, that is left to
        the compression listener."""
        if draft.reason != "budget":
            await self.begin_epoch(draft)
            return
        session_id = self.record.session_id
        event = OverThreshold(session_id=session_id, turn_id=turn_id, draft=draft)
        try:
            await self.services.on_compression(event, compressible)
        except Exception:
            log.exception("%s: compression failed; the turn goes on", session_id)

    async def view(
        self,
        prompt_ref: PromptReference,
        call_budget: CallBudget,
        *,
        epoch: EpochEntry | None = None,
    ) -> ContextView:
        """`epoch`: a draft; the context is the one that would follow it."""
        if epoch is None and self._only_grows(prompt_ref, call_budget):
            return self._grown_view(prompt_ref, call_budget)
        return await self.compute(
            lambda: self.projection.context(prompt_ref, call_budget, epoch=epoch)
        )

    def _grown_view(self, prompt_ref: PromptReference, call_budget: CallBudget) -> ContextView:
        history = self.record.history
        self._computed = (history, history.head_seq)
        return self.projection.context(prompt_ref, call_budget)

    def answer_tokens_max(self, model: str, context_tokens: int) -> int:
        """How many tokens are left for the answer after a context of that many tokens."""
        services = self.services
        corrected = services.counting.correction.corrected(model, context_tokens)
        most = services.models.facts(model).room_for_answer(corrected)
        ceiling = self._ceilings.get(model)
        return most if ceiling is None else min(most, ceiling.answer_tokens)

    # Learning from the results of calls

    def learn_ceiling(self, model: str, room: CallRoom) -> None:
        """Remembers that the provider refused more than this, whatever its documented window.
        Not stored: after a restart it is learned again, since the provider may have changed."""
        self._ceilings[model] = room.within(self._ceilings.get(model))

    def _load_correction(self, model: str) -> None:
        """Restores the model's token correction from the record after a restart. Without it the
        model's budget would change, and a new epoch would be due."""
        if model in self._corrections_loaded or model in self.services.counting.correction.ratios:
            return
        self._corrections_loaded.add(model)
        for entry in islice(reversed(self.record.history.entries), _ENTRIES_SEARCHED_MAX):
            if not isinstance(entry, ModelOutputEntry) or not (entry.sent and entry.usage):
                continue
            real = entry.usage.get("input_tokens")
            if entry.invocation and model_name(entry.invocation) == model and isinstance(real, int):
                self.services.counting.learn(model, counted=entry.sent.tokens, real=real)
                return

    def begins_without_tools(self, model: str) -> bool:
        """Whether a call without tools is the first one to this model, since the conversation was
        opened, for which there are tools but no room."""
        is_first = (
            bool(self._services.tools.offer.descriptions) and model not in self._without_tools
        )
        self._without_tools.add(model)
        return is_first

    def has_answered(self, model: str) -> bool:
        """Whether the model gave one of the newest outputs."""
        newest = islice(reversed(self.record.history.entries), _ENTRIES_SEARCHED_MAX)
        outputs = (entry for entry in newest if isinstance(entry, ModelOutputEntry))
        return any(each.invocation and model_name(each.invocation) == model for each in outputs)

    # Epochs and summaries

    async def begin_epoch(self, draft: EpochEntry) -> EpochEntry:
        epoch = await self.record.append(draft)
        self._announce(epoch)
        return epoch

    async def begin_epoch_for(self, reason: RequestedReason, call_budget: CallBudget) -> EpochEntry:
        """Begins an epoch for a change that is not an entry. It is drafted and written in one
        exclusive section, so that no entry is written in between."""
        async with self.record.exclusive():
            epoch = await self.record.append(await self.draft_epoch(reason, call_budget))
        self._announce(epoch)
        return epoch

    def _announce(self, epoch: EpochEntry) -> None:
        self.record.broadcast.announce("epoch", {"epoch": epoch.seq, "reason": epoch.reason})

    async def draft_epoch(self, reason: RequestedReason, call_budget: CallBudget) -> EpochEntry:
        screen = self.state.screen()

        def draft() -> EpochEntry:
            if reason == "asked":
                return self.projection.asked_epoch(call_budget, screen=screen)
            return self.projection.epoch_for(reason, call_budget, screen=screen)

        return await self.compute(draft)


def _newly_shortened(history: ConversationHistory, earlier: EpochEntry | None) -> JsonObject | None:
    """The numbers of turns that the present epoch shortens or omits and the earlier one did not."""
    epoch = history.epoch
    if epoch is None or epoch is earlier:
        return None
    through = 0 if earlier is None else earlier.summary_through
    omitted = epoch.omitted_turns - (0 if earlier is None else earlier.omitted_turns)
    shortened = sum(
        max(through, epoch.omitted_through) < turn.number <= epoch.summary_through
        for turn in history.shown_turns
    )
    if omitted <= 0 and not shortened:
        return None
    return {"shortened_turns": shortened, "omitted_turns": max(0, omitted)}


def _characters_of(entry: Entry) -> int:
    if isinstance(entry, ToolResultsEntry):
        return sum(len(result.result) for result in entry.results)
    return len(entry.content) if isinstance(entry, ModelInputEntry | ModelOutputEntry) else 0
