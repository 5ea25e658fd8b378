"""When a conversation fills its model's window: an event, and who answers it.

Whoever listens may begin a new epoch, ask a model for a summary, or leave it: the
context is made to fit all the same. A listener that fails is logged, and the turn
goes on. The built-in one begins the epoch at once, by rule alone, and has the
summarizer, if there is one, work beside the turn.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from nplt_storage.facts.entries import EpochEntry

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverThreshold:
    """The next context would take more of the budget than it should."""

    session_id: str
    turn_id: str
    answer: EpochEntry
    """The epoch that would make room, as a draft."""


class Compressible(Protocol):
    """The conversation, as far as a listener may change it."""

    async def begin_epoch(self, draft: EpochEntry) -> EpochEntry: ...

    def summarize_beside(self, asked: str | None, epoch: EpochEntry) -> None: ...


Listener: TypeAlias = Callable[[OverThreshold, Compressible], Awaitable[None]]


async def begin_epoch_and_summarize(event: OverThreshold, conversation: Compressible) -> None:
    epoch = await conversation.begin_epoch(event.answer)
    conversation.summarize_beside(event.turn_id, epoch)


async def tell_listeners(
    listeners: Sequence[Listener], event: OverThreshold, conversation: Compressible
) -> None:
    for listener in listeners:
        try:
            await listener(event, conversation)
        except Exception:
            log.exception("%s: compression failed; the turn goes on", event.session_id)
