"""The context of one epoch, grown as the record grows.

One list, to which only ever is added: what a call was shown is what the list
held then, so the next call's context begins with it. The turns before come first,
then the entries of the turn that runs; when it has ended, they are already there.
Whatever can't be reached by adding (another epoch, a turn that ended out of
order, a window that moved on) begins with a list of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nplt_server.context.measuring import Measured
from nplt_server.context.messages import ContextMessage
from nplt_server.context.scene import Scene
from nplt_server.context.selection import EpochPlan
from nplt_server.context.steps import steps_from
from nplt_storage.conversation.turns import Turn
from nplt_storage.facts.entries import CompactionEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class _Basis:
    """What the list is made from, but for the turns themselves."""

    instruction: str
    plan: EpochPlan
    epoch_seq: int
    compaction: CompactionEntry | None
    first: int
    quarantined: frozenset[int]
    screens_after: int
    takes_images: bool


@dataclass(slots=True, kw_only=True)
class _Open:
    """The turn at the end of the list, which may go on."""

    turn: Turn
    begins_at: int
    tokens_before: int
    entries_taken: int = 0


class Compiled:
    __slots__ = ("_basis", "_next", "_open", "_shown", "has_head", "messages", "sizes", "tokens")

    def __init__(self, scene: Scene) -> None:
        self._basis = _basis(scene)
        self._shown: Sequence[Turn] = scene.shown
        self._next = scene.selection.first
        """The place of the first shown turn that is not in the list."""
        self._open: _Open | None = None
        self.messages: list[ContextMessage] = []
        self.sizes: list[int] = []
        self.tokens = 0
        head = scene.head()
        self.has_head = bool(head)
        self._add([*scene.system(), *head])

    def leads_to(self, scene: Scene) -> bool:
        """Whether that scene's context can be had from this one by adding to it."""
        return (
            scene.shown is self._shown
            and self._next <= scene.selection.until
            and _basis(scene) == self._basis
        )

    def lacks(self, scene: Scene) -> int:
        """How many turns would be added."""
        return scene.selection.until - self._next

    def extend(self, scene: Scene) -> None:
        for place in range(self._next, scene.selection.until):
            turn = self._shown[place]
            level = scene.selection.level_of(turn)
            if level == "live":
                self._go_on(scene, turn)
            elif level is not None:
                self._close_but(None)
                self._add(scene.turn(turn, level))
            self._open = None
        self._next = scene.selection.until
        self._close_but(scene.own)
        if scene.own is not None:
            self._go_on(scene, scene.own)

    def _go_on(self, scene: Scene, turn: Turn) -> None:
        self._close_but(turn)
        if self._open is None:
            self._open = _Open(turn=turn, begins_at=len(self.messages), tokens_before=self.tokens)
        steps = steps_from(turn, scene.quarantined, self._open.entries_taken)
        for step, self._open.entries_taken in steps:
            self._add(scene.step(step, "live"))

    def _close_but(self, turn: Turn | None) -> None:
        """Takes back the open turn, if it is another: it has no place here (yet). Who
        looks at the old list still sees what they saw."""
        if self._open is None or self._open.turn is turn:
            return
        self.messages = self.messages[: self._open.begins_at]
        self.sizes = self.sizes[: self._open.begins_at]
        self.tokens = self._open.tokens_before
        self._open = None

    def _add(self, added: Sequence[Measured]) -> None:
        for message, tokens in added:
            self.messages.append(message)
            self.sizes.append(tokens)
            self.tokens += tokens


def _basis(scene: Scene) -> _Basis:
    selection = scene.selection
    return _Basis(
        instruction=scene.instruction,
        plan=selection.plan,
        epoch_seq=selection.epoch_seq,
        compaction=selection.compaction,
        first=selection.first,
        quarantined=frozenset(scene.quarantined),
        screens_after=scene.screens_after,
        takes_images=scene.takes_images,
    )
