"""What comes out: the messages of one call, and how they came to be chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, TypeVar, overload

from nplt_server.context.messages import ContextMessage
from nplt_server.context.plan import KEEP, THRESHOLD
from nplt_server.context.selection import Selection
from nplt_server.tools.offer import ToolOffer
from nplt_storage.facts.entries import SentContext

_T = TypeVar("_T")
_NO_TOOLS: Final = ToolOffer()


class SoFar(Sequence[_T], Generic[_T]):
    """A list up to the moment it was asked for, which may grow but not change: no copy
    of thousands of references for every call."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: list[_T]) -> None:
        self._items = items
        self._length = len(items)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[_T]:
        return islice(self._items, self._length)

    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[_T]: ...
    def __getitem__(self, index: int | slice) -> _T | Sequence[_T]:
        places = range(self._length)[index]
        if isinstance(places, range):
            return [self._items[place] for place in places]
        return self._items[places]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFrame:
    """What surrounds the messages of a call."""

    budget_tokens: int | None = None
    """How much may be sent; `None`: as much as there is."""
    tools_tokens: int = 0
    offer: ToolOffer = _NO_TOOLS
    """The tools that are sent along: these, also if others come meanwhile."""
    threshold: float = THRESHOLD
    keep: float = KEEP
    takes_images: bool = False
    """Whether the model that is asked can be shown pictures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextView:
    messages: Sequence[ContextMessage]
    sizes: Sequence[int]
    """The tokens of each message."""
    tokens: int
    """Of all messages and the tools."""
    frame: CallFrame
    selection: Selection
    has_head: bool = False
    """Whether a message before all turns carries a summary or the screen."""
    is_trimmed: bool = False
    """Made to fit for the moment: the next call's need not extend it."""
    head_seq: int = 0
    """The newest entry there was: what is changed later is not in it."""

    @property
    def sent(self) -> SentContext:
        """For the record, beside what the model answered."""
        return SentContext(
            tokens=self.tokens,
            budget_tokens=self.frame.budget_tokens or 0,
            tools_digest=self.frame.offer.digest,
            epoch_seq=self.selection.epoch_seq,
            head_seq=self.head_seq,
            trimmed=self.is_trimmed,
        )
