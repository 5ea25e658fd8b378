"""What one call's context is put together from, looked up once.

    system      the instruction
    head        a summary that stands for older turns, and the live screen
    turns       older ones, in order, as the epoch shows them
    own         what the turn itself holds so far

Nothing here is changed by who uses it, and nothing is counted before it is asked
for: of a long conversation most is never looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

from nplt_server.context.levels import ContextEntry
from nplt_server.context.measuring import Measure, Measured, tokens_of
from nplt_server.context.messages import ModelInputMessage, SystemMessage
from nplt_server.context.screens import (
    ScreensInTurns,
    last_screen_in,
    screen_sources,
    screens_after,
)
from nplt_server.context.selection import Selection, select
from nplt_server.context.steps import Step, steps_of
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.conversation.turns import Turn
from nplt_storage.facts.entries import EpochEntry, ModelInputEntry, ModelOutputEntry
from nplt_storage.facts.sections import LevelOfDetail

Asked: TypeAlias = str | ModelInputEntry | None
"""A turn's id, a prompt not written yet, or no prompt at all: a turn yet to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    measure: Measure
    instruction: str
    selection: Selection
    shown: Sequence[Turn]
    own: Turn | None
    quarantined: Collection[int]
    screen: str | None = None
    """In the head: the one in force where the turns that are shown begin."""
    screen_seq: int = 0
    """Before the first epoch: the newest entry whose words stand on it."""
    screen_before_own: str = ""
    """The one in force where the turn itself begins."""
    screens_after: int = 0
    """Those written in entries up to this one are out of date."""
    screens: bool = True
    """Whether messages carry the screens written into their entries."""
    takes_images: bool = False
    newest_seq: int | None = None
    """With the rule that only the newest input or results are live: their number."""

    @property
    def turns(self) -> Iterator[Turn]:
        """Older ones that are shown at some level, oldest first."""
        return self._shown_at(range(self.selection.first, self.selection.until))

    @property
    def newest_first(self) -> Iterator[Turn]:
        return self._shown_at(range(self.selection.until - 1, self.selection.first - 1, -1))

    def _shown_at(self, places: range) -> Iterator[Turn]:
        turns = (self.shown[place] for place in places)
        return (turn for turn in turns if not self.selection.covers(turn))

    def turn_messages(self) -> list[Measured]:
        return [
            measured
            for turn in self.turns
            if (level := self.selection.level_of(turn)) is not None
            for measured in self.turn(turn, level)
        ]

    def system(self) -> list[Measured]:
        if not self.instruction:
            return []
        return [self.measure.message(SystemMessage(instruction=self.instruction))]

    def head(self) -> list[Measured]:
        message = head_message(self.selection, self.screen, screen_seq=self.screen_seq)
        return [] if message is None else [self.measure.message(message)]

    def turn(self, turn: Turn, level: LevelOfDetail) -> list[Measured]:
        steps = steps_of(turn, self.quarantined)
        return [measured for step in steps for measured in self.step(step, level)]

    def turn_tokens(self, turn: Turn, level: LevelOfDetail) -> int:
        return tokens_of(self.turn(turn, level))

    def step(self, step: Step, level: LevelOfDetail) -> list[Measured]:
        return [self._entry(entry, level) for entry in step]

    def _entry(self, entry: ContextEntry, level: LevelOfDetail) -> Measured:
        if level == "live" and self.newest_seq is not None:
            is_said = isinstance(entry, ModelOutputEntry)
            level = "live" if is_said or entry.seq == self.newest_seq else "summary"
        with_screen = self.screens and entry.seq > self.screens_after
        return self.measure.entry(
            entry, level, with_screen=with_screen, takes_images=self.takes_images
        )

    def own_steps(self) -> list[Step]:
        return [] if self.own is None else list(steps_of(self.own, self.quarantined))

    def everything(self) -> list[Measured]:
        own = [measured for step in self.own_steps() for measured in self.step(step, "live")]
        return [*self.system(), *self.head(), *self.turn_messages(), *own]

    def tokens(self, limit: int) -> int:
        """What everything takes; more than the limit, once that is certain."""
        tokens = tokens_of(self.system()) + tokens_of(self.head())
        for step in self.own_steps():
            tokens += tokens_of(self.step(step, "live"))
        for turn in self.newest_first:
            if tokens > limit:
                break
            level = self.selection.level_of(turn)
            tokens += 0 if level is None else self.turn_tokens(turn, level)
        return tokens

    def with_screen_in_head(self) -> Scene:
        """Where the entry that carries the screen may be shown in less detail."""
        return replace(self, screen=self._last_screen() or None, screens=False)

    def aged(self) -> Scene:
        """By the rule that only the newest input or results are live."""
        newest = next(self._newest_told(), None)
        return replace(self.with_screen_in_head(), newest_seq=newest.seq if newest else 0)

    def _newest_told(self) -> Iterator[ContextEntry]:
        own = [] if self.own is None else [self.own]
        for turn in chain(own, self.newest_first):
            for step in reversed(list(steps_of(turn, self.quarantined))):
                yield from (e for e in reversed(step) if not isinstance(e, ModelOutputEntry))

    def _last_screen(self) -> str:
        """The one in force: the last that was written, be it shown or not."""
        own = None
        if self.own is not None:
            own = last_screen_in(self.own, self.screens_after, self.quarantined)
        return self.screen_before_own if own is None else own


def set_scene(
    history: ConversationHistory,
    asked: Asked,
    *,
    screens: ScreensInTurns,
    measure: Measure,
    epoch: EpochEntry | None,
    takes_images: bool = False,
) -> Scene:
    """An id that is not there is taken as a turn yet to come."""
    own = _own_turn(history, asked)
    number = history.head_seq + 1 if own is None else own.number
    selection = select(history, epoch, number=number)
    shown = history.shown_turns
    first, until = selection.first, selection.until
    if epoch is history.epoch:
        screen = screens.before(shown[first].number if first < until else number)
        before_own = screens.before(number)
    else:  # one that is not written yet: it brings its own
        screen = before_own = epoch.screen if epoch is not None else ""
    return Scene(
        measure=measure,
        instruction=history.system_instruction or "",
        selection=selection,
        shown=shown,
        own=own,
        quarantined=history.quarantined.keys(),
        screen=screen or None,
        screen_before_own=before_own,
        screen_seq=0 if epoch is not None else max(screen_sources(history).values(), default=0),
        screens_after=screens_after(history, epoch),
        takes_images=takes_images,
    )


def _own_turn(history: ConversationHistory, asked: Asked) -> Turn | None:
    if isinstance(asked, ModelInputEntry):
        prompt = replace(asked, seq=history.head_seq + 1)
        return Turn(number=prompt.seq, prompt=prompt, entries=[prompt])
    return None if asked is None else history.turn(asked)


def head_message(
    selection: Selection, screen: str | None, *, screen_seq: int = 0
) -> ModelInputMessage | None:
    compaction = selection.compaction
    if compaction is None and screen is None:
        return None
    summary = ""
    if compaction is not None:
        span = f"entries {compaction.from_seq} to {compaction.through_seq}"
        summary = f"## Summary of what came before ({span})\n{compaction.content}"
    seq = selection.epoch_seq or screen_seq
    return ModelInputMessage(seq=seq, content=summary, live_screen=screen)
