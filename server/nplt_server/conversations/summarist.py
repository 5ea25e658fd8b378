"""Who has a conversation's summaries made: one at a time, and kept only if it is of use.

A summary takes a while, and the conversation goes on meanwhile. So what it would
say is looked at again in the moment it is written: what was cleared, taken back or
put in quarantine since must not come back through it, and a summary of more must
not be replaced by one of less. Whatever comes of it, nothing depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from nplt_protocol.errors import RequestError
from nplt_protocol.json_values import JsonObject
from nplt_server.accumulator import ModelOutputAccumulator, usage_as_json
from nplt_server.agent_state import Write
from nplt_server.context.measuring import Measure
from nplt_server.context.projection import Projection
from nplt_server.context.scene import Asked
from nplt_server.context.summaries import SummaryTask
from nplt_server.conversations.household import Household
from nplt_server.conversations.ledger import Ledger
from nplt_server.conversations.summarizing import SUMMARY_BYTES_MAX, request_for, summarize
from nplt_server.errors import ProviderError
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.errors import StorageError
from nplt_storage.facts.entries import (
    ClearEntry,
    CompactionEntry,
    EpochEntry,
    ModelInvocationDescriptor,
    QuarantineEntry,
    RollbackEntry,
)

log = logging.getLogger(__name__)

_EXPECTED = (ProviderError, RequestError, StorageError, TimeoutError)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """One summary, and the conversation as it was when it was asked for."""

    model: str
    task: SummaryTask
    tokens_max: int
    history: ConversationHistory
    head_seq: int
    measure: Measure


@dataclass(slots=True)
class _AtWork:
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)


class Summarist:
    __slots__ = ("_announce", "_at_work", "_house", "_ledger", "_write")

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
        self._at_work: _AtWork | None = None

    @property
    def is_at_work(self) -> bool:
        return self._at_work is not None

    def begin(self, projection: Callable[[], Projection], asked: Asked, epoch: EpochEntry) -> None:
        """Beside everything else; not at all while one is being made."""
        if self.is_at_work:
            return
        order = self._order(projection, asked, epoch)
        if order is None:
            return
        at_work = self._at_work = _AtWork()

        async def work() -> None:
            await self._carry_out(order, at_work)

        self._house.spawn(work)

    async def finish(
        self, projection: Callable[[], Projection], asked: Asked, epoch: EpochEntry
    ) -> CompactionEntry | None:
        """One that is waited for takes the place of one that is being made beside: that
        one was asked for earlier, and is of less. `None`: it did not work out."""
        while self._at_work is not None:
            self._at_work.scope.cancel()
            await self._at_work.done.wait()
        order = self._order(projection, asked, epoch)
        if order is None:
            return None
        at_work = self._at_work = _AtWork()
        return await self._carry_out(order, at_work)

    def stop(self) -> None:
        """Whoever waits for a summary goes on without it."""
        if self._at_work is not None:
            self._at_work.scope.cancel()

    def _order(
        self, projection: Callable[[], Projection], asked: Asked, epoch: EpochEntry
    ) -> _Order | None:
        thinking = self._house.thinking
        model = thinking.summarizer
        if model is None or self._house.draining:
            return None  # before anything is gathered: a conversation may be long
        room = thinking.facts(model).budget_tokens * 3 // 4
        projected = projection()
        task = projected.summary_task(asked, epoch, room=room)
        if task is None:
            return None
        return _Order(
            model=model,
            task=task,
            tokens_max=thinking.summary_tokens_max(epoch.budget_tokens or room),
            history=projected.history,
            head_seq=projected.history.head_seq,
            measure=projected.measure,
        )

    async def _carry_out(self, order: _Order, at_work: _AtWork) -> CompactionEntry | None:
        output = ModelOutputAccumulator(answer_bytes_max=SUMMARY_BYTES_MAX)
        refusal = "it was given up"
        compaction = None
        try:
            with at_work.scope:
                compaction, refusal = await self._make(order, output)
        except _EXPECTED as error:
            refusal = str(error) or "time-out"
        except Exception:
            refusal = "a bug"
            log.exception("%s: a summary failed", self._ledger.session_id)
        finally:
            self._at_work = None
            at_work.done.set()
            if compaction is None:
                usage = usage_as_json(output.usage) or "not told"
                log.warning(
                    "%s: no summary: %s (billed: %s)", self._ledger.session_id, refusal, usage
                )
        return compaction

    async def _make(
        self, order: _Order, output: ModelOutputAccumulator
    ) -> tuple[CompactionEntry | None, str]:
        """The summary, or why there is none."""
        thinking = self._house.thinking
        router = self._house.router
        line, invocation = router.route(order.model)
        request = request_for(
            order.task,
            invocation=invocation,
            tokens_max=order.tokens_max,
            answer_tokens_max=thinking.facts(order.model).answer_tokens,
        )
        text = await summarize(
            request,
            output,
            line=line,
            rules=router.retries,
            seconds_max=thinking.summary_seconds_max,
        )
        refusal = _too_long(text, order)
        if refusal is not None:
            return None, refusal
        return await self._record(order, text, invocation, output)

    async def _record(
        self,
        order: _Order,
        text: str,
        invocation: ModelInvocationDescriptor,
        output: ModelOutputAccumulator,
    ) -> tuple[CompactionEntry | None, str]:
        refusal = ""
        task = order.task

        def prepare() -> CompactionEntry | None:
            nonlocal refusal
            refusal = self._out_of_date(order) or ""
            if refusal:
                return None
            return CompactionEntry(
                content=text,
                from_seq=task.from_seq,
                through_seq=task.through_seq,
                invocation=invocation,
                usage=usage_as_json(output.usage),
            )

        entry = await self._write(prepare)
        if entry is None:
            return None, refusal
        assert isinstance(entry, CompactionEntry)
        self._announce(
            "compacted",
            {"compaction": entry.seq, "from_seq": task.from_seq, "through_seq": task.through_seq},
        )
        return entry, ""

    def _out_of_date(self, order: _Order) -> str | None:
        """Called with the pen in hand."""
        if self._house.draining:
            return "the server is shutting down"
        history = self._ledger.history
        since = history.entries_after(order.head_seq) if history is order.history else None
        if since is None:
            return "the conversation was read anew since it was asked for"
        for entry in since:
            match entry:
                case ClearEntry() | RollbackEntry():
                    return f"a {entry.kind} came since it was asked for"
                case QuarantineEntry(target_seq=seq) if seq <= order.task.through_seq:
                    return "something it may speak of was put in quarantine"
                case _:
                    pass
        if any(known.through_seq >= order.task.through_seq for known in history.compactions[-1:]):
            return "one that covers as much stands already"
        return None


def _too_long(text: str, order: _Order) -> str | None:
    tokens, told = order.measure.text(text), order.task.tokens
    if tokens >= told:
        return f"its {tokens} tokens are not less than the {told} it would stand for"
    if tokens > order.tokens_max:
        return f"it has {tokens} tokens, and at most {order.tokens_max} are kept"
    return None
