"""Selects what the context of one call shows: its parts, and the level of each older turn.

A context is the system instruction, a head (summary and live screen), older turns as the epoch
shows them, and the running turn. `read_history` reads once what a call needs of the history;
`parts_of` makes the parts of it. All of this is the same after a restart, because it depends
only on the record.

An epoch gives three numbers; older turns are shown in less detail. Turns after the epoch are
live, so a context only grows. A model's summary from before the epoch replaces the turns it
covers, unless it was cleared or quarantined. With `turns_max` (the setting `max_turns`) only the
newest turns are shown.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final, TypeAlias

from msgspec import Struct, field, structs

from nplt_protocol.json_text import JsonObject
from nplt_server.context.messages import (
    MESSAGE_TOKENS,
    ContextMessage,
    KeptRenderings,
    ModelInputMessage,
    SystemMessage,
)
from nplt_server.context.screens import ScreensInTurns, last_screen_in
from nplt_server.context.steps import ContextStep, Measure, Measured, steps_of, tokens_of
from nplt_server.tools import ToolOffer
from nplt_storage.active_entries import NOTHING_HIDDEN, HiddenEntries, hidden_from
from nplt_storage.entries import (
    CompactionEntry,
    Entry,
    EpochEntry,
    LevelOfDetail,
    ModelInputEntry,
    ModelOutputEntry,
    QuarantineEntry,
    SentContext,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.turns import Turn

KEEP: Final = 0.5
"""How much of the budget a new epoch fills."""
THRESHOLD: Final = 0.85
"""How much of the budget may be filled before a new epoch begins."""

_number: Final = attrgetter("number")
_seq: Final = attrgetter("seq")

PromptReference: TypeAlias = str | ModelInputEntry | None
"""A turn's id, a prompt not written yet, or no prompt at all: a turn yet to come."""


class CallBudget(Struct, frozen=True, kw_only=True):
    """Token budget, tools and image support of one call."""

    budget_tokens: int | None = None
    """The tokens that may be sent; `None`: no limit."""
    tools_tokens: int = 0
    offer: ToolOffer = ToolOffer()
    """The tools sent with the call. Fixed here, even if the tools on offer change meanwhile."""
    threshold: float = THRESHOLD
    keep: float = KEEP
    takes_images: bool = False
    """Whether the model can be shown images."""
    provider: str = ""
    """The provider of the model, because each has refused other entries."""
    takes_pdfs: bool = False
    """Whether the model reads PDFs itself."""


class HistoryAtCall(Struct, frozen=True, kw_only=True):
    """The history at one call, for one turn."""

    prompt_ref: PromptReference
    head_seq: int
    first_seq: int
    """Every active entry from here on is in memory."""
    rollback_seq: int
    """The newest rollback; 0 if there is none. The entry itself is rolled back and may not be
    in memory, but the hidden ranges end with it."""
    active: Sequence[Entry]
    instruction: str
    epoch: EpochEntry | None
    epoch_seq: int
    """0 before the first epoch."""
    compactions: tuple[CompactionEntry, ...]
    """Summaries that no clear came after."""
    quarantines: Mapping[int, tuple[QuarantineEntry, ...]]
    quarantine_seq: int
    """The newest quarantine in force; 0 if there is none."""
    turns_max: int | None
    shown_turns: Sequence[Turn]
    unfinished: tuple[int, ...]
    """The numbers of turns that have not ended."""
    own: Turn | None
    number: int
    """The own turn's number, or that of a turn yet to come."""
    is_alone: bool = False
    """Whether the prompt asks to be answered without the history (`use_history: false`)."""


def read_history(history: ConversationHistory, prompt_ref: PromptReference) -> HistoryAtCall:
    """An unknown turn id counts as a turn that is yet to come."""
    head_seq = history.head_seq
    if isinstance(prompt_ref, ModelInputEntry):
        prompt = structs.replace(prompt_ref, seq=head_seq + 1)
        own: Turn | None = Turn(number=prompt.seq, prompt=prompt, entries=[prompt])
    else:
        own = None if prompt_ref is None else history.turn(prompt_ref)
    epoch, quarantines = history.epoch, history.quarantines
    return HistoryAtCall(
        prompt_ref=prompt_ref,
        head_seq=head_seq,
        first_seq=history.first_seq,
        rollback_seq=history.hidden[-1][1] if history.hidden else 0,
        active=history.active,
        instruction=history.system_instruction or "",
        epoch=epoch,
        epoch_seq=0 if epoch is None else epoch.seq,
        compactions=history.compactions,
        quarantines=quarantines,
        quarantine_seq=max(map(_newest_seq, quarantines.values()), default=0),
        turns_max=history.turns_max,
        shown_turns=history.shown_turns,
        unfinished=tuple(map(_seq, history.unfinished_turns())),
        own=own,
        number=head_seq + 1 if own is None else own.number,
        is_alone=own is not None
        and own.prompt is not None
        and own.prompt.options.get("use_history") is False,
    )


def _newest_seq(quarantines: Sequence[QuarantineEntry]) -> int:
    return quarantines[-1].seq


def turns_before(at: HistoryAtCall) -> int:
    """How many of the shown turns come before the own turn."""
    shown, number = at.shown_turns, at.number
    is_last = not shown or shown[-1].number < number  # nearly always
    return len(shown) if is_last else bisect_left(shown, number, key=_number)


class EpochPlan(Struct, frozen=True, kw_only=True):
    """The levels of older turns, by turn number: up to `omitted_through` not shown, up to
    `gist_through` as gist, up to `summary_through` as summary, later ones live."""

    omitted_through: int = 0
    gist_through: int = 0
    summary_through: int = 0


_ALL_LIVE: Final = EpochPlan()
_SHARES: Final[Mapping[LevelOfDetail, float]] = {"live": 0.6, "summary": 0.85, "gist": 1.0}
"""The fraction of the room for older turns at which each level ends."""
_LEVELS: Final = tuple(_SHARES)


def plan_levels(
    newest_first: Iterable[Turn],
    *,
    budget: int,
    fixed: int,
    tokens: Callable[[Turn, LevelOfDetail], int],
    keep: float = KEEP,
) -> EpochPlan:
    """Plans the level of each older turn, from the newest back: live while there is room, then
    summary, then gist, then not shown; whole turns only, so no tool call loses its result. Fills
    part of the budget (`keep`) and leaves the rest to grow into, because each epoch invalidates
    the provider's cache. Stops at the first turn that is not shown. `fixed`: the tokens of the
    context besides these turns."""
    room = max(0, int(keep * budget) - fixed)
    limits = {level: int(share * room) for level, share in _SHARES.items()}
    spare = max(room, int(THRESHOLD * budget) - fixed)
    # A prompt most likely refers to the turn before it, so that turn gets more room.
    limits_now = {**limits, "summary": spare, "gist": spare}
    levels = _LEVELS
    taken, all_live, omitted_through = 0, 0, 0
    through: dict[LevelOfDetail, int] = {}
    for turn in newest_first:
        if all_live <= room:
            all_live += tokens(turn, "live")
        while levels and taken + tokens(turn, levels[0]) > limits_now[levels[0]]:
            levels = levels[1:]
        if not levels:
            omitted_through = turn.number
            break
        taken += tokens(turn, levels[0])
        through.setdefault(levels[0], turn.number)
        limits_now = limits
    else:
        if all_live <= room:
            return EpochPlan()
    gist_through = through.get("gist", omitted_through)
    return EpochPlan(
        omitted_through=omitted_through,
        gist_through=gist_through,
        summary_through=through.get("summary", gist_through),
    )


class Selection(Struct, frozen=True, kw_only=True):
    """Which turns are shown, and at which level."""

    plan: EpochPlan
    epoch_seq: int = 0
    """Screens written before the epoch are out of date; the epoch has a screen of its own."""
    compaction: CompactionEntry | None = None
    first: int = 0
    until: int = 0
    """The range of `shown_turns` that this turn's context shows, limited by `turns_max`."""

    def level_of(self, turn: Turn) -> LevelOfDetail | None:
        plan, number = self.plan, turn.number
        if number <= plan.omitted_through or self.covers(turn):
            return None
        if number <= plan.gist_through:
            return "gist"
        return "summary" if number <= plan.summary_through else "live"

    def within(self, plan: EpochPlan, shown: Sequence[Turn]) -> Selection:
        """This selection, with no turn in more detail than the plan says."""
        merged = EpochPlan(
            omitted_through=max(plan.omitted_through, self.plan.omitted_through),
            gist_through=max(plan.gist_through, self.plan.gist_through),
            summary_through=max(plan.summary_through, self.plan.summary_through),
        )
        first = bisect_right(shown, merged.omitted_through, key=_number)
        return structs.replace(self, plan=merged, first=max(self.first, first))

    def covers(self, turn: Turn) -> bool:
        """Whether the summary replaces the turn."""
        compaction = self.compaction
        return (
            compaction is not None
            and turn.end is not None
            and compaction.from_seq <= turn.number
            and turn.end.seq <= compaction.through_seq
        )

    @property
    def summary(self) -> str:
        if (summary := self.compaction) is None:
            return ""
        span = f"entries {summary.from_seq} to {summary.through_seq}"
        return f"## Summary of what came before ({span})\n{summary.content}"


def select(at: HistoryAtCall, epoch: EpochEntry | None, hidden: HiddenEntries) -> Selection:
    until = turns_before(at)
    first = 0 if at.turns_max is None else max(0, until - at.turns_max)
    if epoch is None:
        return Selection(plan=_ALL_LIVE, first=first, until=until)
    summaries = (
        entry
        for entry in reversed(at.compactions)
        if entry.seq < epoch.seq and entry.seq not in hidden.entries
    )
    plan = EpochPlan(
        omitted_through=epoch.omitted_through,
        gist_through=epoch.gist_through,
        summary_through=epoch.summary_through,
    )
    return Selection(
        plan=plan,
        epoch_seq=epoch.seq,
        compaction=next(summaries, None),
        first=max(first, bisect_right(at.shown_turns, plan.omitted_through, key=_number)),
        until=until,
    )


class ContextParts(Struct, frozen=True, kw_only=True):
    measure: Measure
    call_budget: CallBudget
    head_seq: int
    instruction: str
    selection: Selection
    shown_turns: Sequence[Turn]
    own: Turn | None
    quarantined: frozenset[int]
    without_pictures: frozenset[int]
    """Entries of which the pictures are quarantined."""
    screen: str | None
    """The live screen in the head: the one at the beginning of the shown turns."""
    screen_seq: int
    """The newest entry whose text is on the screen, before the first epoch."""
    screen_before_own: str
    """The live screen at the beginning of the turn itself."""
    screens_after: int
    """Screens in entries up to this seq are out of date."""
    screens: bool = True
    """Whether messages carry the screens written into their entries."""
    newest_seq: int | None = None
    """The seq of the only live input or results, under the policy `newest_live`."""
    left_out: int
    """How many older turns are neither shown nor summarized."""
    turns_max: int | None
    """The setting `max_turns`, if it hides older turns."""


def parts_of(
    at: HistoryAtCall, call_budget: CallBudget, measure: Measure, screens: ScreensInTurns
) -> ContextParts:
    """The parts in the current epoch."""
    parts = _parts(at, at.epoch, call_budget, measure)
    first, until = parts.selection.first, parts.selection.until
    screen = screens.before(at.shown_turns[first].number if first < until else at.number)
    return structs.replace(
        parts,
        screen=screen or None,
        screen_before_own=screens.before(at.number),
        screen_seq=screens.source_seq() if screen and at.epoch is None else 0,
    )


def parts_after(
    draft: EpochEntry, at: HistoryAtCall, call_budget: CallBudget, measure: Measure
) -> ContextParts:
    """The parts once this epoch is written. It has a screen of its own."""
    # The prompt may be a draft too, and is written before the epoch.
    epoch = draft if draft.seq else structs.replace(draft, seq=at.head_seq + 2)
    parts = _parts(at, epoch, call_budget, measure)
    return structs.replace(parts, screen=epoch.screen or None, screen_before_own=epoch.screen)


def _parts(
    at: HistoryAtCall, epoch: EpochEntry | None, call_budget: CallBudget, measure: Measure
) -> ContextParts:
    """The head without a screen."""
    quarantines = at.quarantines
    hidden = hidden_from(call_budget.provider, quarantines) if quarantines else NOTHING_HIDDEN
    selection = select(at, epoch, hidden)
    until, most = selection.until, at.turns_max
    is_windowed = most is not None and (until > most or (until == most and at.first_seq > 1))
    return ContextParts(
        measure=measure,
        call_budget=call_budget,
        head_seq=at.head_seq,
        instruction=at.instruction,
        selection=selection,
        shown_turns=at.shown_turns,
        own=at.own,
        quarantined=hidden.entries,
        without_pictures=hidden.pictures,
        screen=None,
        screen_before_own="",
        screen_seq=0,
        screens_after=max(epoch.seq if epoch is not None else 0, at.quarantine_seq),
        left_out=epoch.omitted_turns if epoch is not None else 0,
        turns_max=most if is_windowed else None,
    )


def with_selection(parts: ContextParts, selection: Selection) -> ContextParts:
    """These parts with fewer turns."""
    more = parts.shown_turns[parts.selection.first : selection.first]
    left_out = parts.left_out + sum(not selection.covers(turn) for turn in more)
    return structs.replace(parts, selection=selection, left_out=left_out)


def with_screen_in_head(parts: ContextParts) -> ContextParts:
    """Moves the newest live screen into the head, because the entry that carries the screen
    may be shown in less detail."""
    written = None
    if parts.own is not None:
        written = last_screen_in(parts.own, parts.screens_after, parts.quarantined)
    screen = parts.screen_before_own if written is None else written
    return structs.replace(parts, screen=screen or None, screens=False)


def with_newest_live(parts: ContextParts) -> ContextParts:
    """These parts under the policy `newest_live`: only the newest input or results are live."""
    own = [] if parts.own is None else [parts.own]
    newest = (
        entry.seq
        for turn in chain(own, older_turns(parts, newest_first=True))
        for step in reversed(list(steps_of(turn, parts.quarantined)))
        for entry in reversed(step)
        if not isinstance(entry, ModelOutputEntry)
    )
    return structs.replace(with_screen_in_head(parts), newest_seq=next(newest, 0))


def older_turns(parts: ContextParts, *, newest_first: bool = False) -> Iterator[Turn]:
    """The turns before the own one that are shown at some level."""
    places = range(parts.selection.first, parts.selection.until)
    for place in reversed(places) if newest_first else places:
        if not parts.selection.covers(turn := parts.shown_turns[place]):
            yield turn


def own_steps(parts: ContextParts) -> list[ContextStep]:
    return [] if parts.own is None else list(steps_of(parts.own, parts.quarantined))


def measure_turns(parts: ContextParts, turns: Iterable[Turn]) -> list[Measured]:
    """Their messages, each turn at its level."""
    return [
        measured
        for turn in turns
        if (level := parts.selection.level_of(turn)) is not None
        for measured in measure_turn(parts, turn, level)
    ]


def measure_turn(parts: ContextParts, turn: Turn, level: LevelOfDetail) -> list[Measured]:
    return measure_steps(parts, steps_of(turn, parts.quarantined), level)


def turn_counter(parts: ContextParts) -> Callable[[Turn, LevelOfDetail], int]:
    """Counts the tokens of a turn at a level, for `plan_levels`."""
    return lambda turn, level: tokens_of(measure_turn(parts, turn, level))


def measure_steps(
    parts: ContextParts, steps: Iterable[ContextStep], level: LevelOfDetail = "live"
) -> list[Measured]:
    return [measured for step in steps for measured in measure_step(parts, step, level)]


def measure_step(
    parts: ContextParts, step: ContextStep, level: LevelOfDetail = "live"
) -> list[Measured]:
    measured = []
    for entry in step:
        shown = level
        if level == "live" and parts.newest_seq is not None:
            is_output = isinstance(entry, ModelOutputEntry)
            shown = "live" if is_output or entry.seq == parts.newest_seq else "summary"
        measured.append(
            parts.measure.entry(
                entry,
                shown,
                with_screen=parts.screens and entry.seq > parts.screens_after,
                takes_images=parts.call_budget.takes_images
                and entry.seq not in parts.without_pictures,
                takes_pdfs=parts.call_budget.takes_pdfs,
            )
        )
    return measured


def measure_system(parts: ContextParts) -> list[Measured]:
    if not parts.instruction:
        return []
    return [parts.measure.message(SystemMessage(instruction=parts.instruction))]


def measure_head(parts: ContextParts) -> list[Measured]:
    content = "\n\n".join(filter(None, (notice_of(parts), parts.selection.summary)))
    if not content and parts.screen is None:
        return []
    seq = parts.selection.epoch_seq or parts.screen_seq
    message = ModelInputMessage(seq=seq, content=content, live_screen=parts.screen)
    return [parts.measure.message(message)]


def head_tokens_max(parts: ContextParts) -> int:
    """The most that the head may take: it says which turns are left out, and that is not known
    before the rest is."""
    if parts.selection.first == parts.selection.until:
        return tokens_of(measure_head(parts))
    none = structs.replace(parts.selection, first=parts.selection.until)
    tokens = tokens_of(measure_head(with_selection(parts, none)))
    return tokens + parts.measure.text(SHORTENED) + MESSAGE_TOKENS


SEARCH_TOOL: Final = "search_history"
SHORTENED: Final = "[Turns marked [gist] or [summary] are shown shortened, answers too.]"


def notice_of(parts: ContextParts) -> str:
    """Tells the model that turns are not shown, or shown in less detail. The same for all of an
    epoch."""
    lines: list[str] = []
    if left_out := _notice_of_left_out(parts):
        tools = parts.call_budget.offer.descriptions
        can_search = any(tool.name == SEARCH_TOOL for tool in tools)
        how = f"; the tool {SEARCH_TOOL} finds what was said" if can_search else ""
        lines.append(f"[{left_out}{how}.]")
    is_aged = parts.newest_seq is not None
    if is_aged or parts.selection.plan != _ALL_LIVE:
        first = next(older_turns(parts), None)
        if first is not None and (is_aged or parts.selection.level_of(first) != "live"):
            lines.append(SHORTENED)
    return "\n".join(lines)


def _notice_of_left_out(parts: ContextParts) -> str:
    match parts.left_out, parts.turns_max:
        case 0, None:
            return ""
        case 0, 1:
            return "Only the last turn of this conversation is shown here"
        case 0, most:
            return f"Only the last {most} turns of this conversation are shown here"
        case 1, None:
            return "The oldest turn of this conversation is left out here"
        case count, None:
            return f"The oldest {count} turns of this conversation are left out here"
        case _:
            return "Older turns of this conversation are left out here"


def is_too_long(parts: ContextParts) -> bool:
    """Whether the context exceeds its budget. Counting stops once it does."""
    if parts.call_budget.budget_tokens is None:
        return False
    room = parts.call_budget.budget_tokens - parts.call_budget.tools_tokens
    own = measure_steps(parts, own_steps(parts))
    tokens = tokens_of([*measure_system(parts), *measure_head(parts), *own])
    for turn in older_turns(parts, newest_first=True):
        if tokens > room:
            break
        tokens += tokens_of(measure_turns(parts, [turn]))
    return tokens > room


class ContextView(Struct, frozen=True, kw_only=True):
    """The context of one call."""

    messages: Sequence[ContextMessage]
    sizes: Sequence[int]
    """The tokens of each message."""
    tokens: int
    """The tokens of all messages and the tools."""
    call_budget: CallBudget
    selection: Selection
    has_head: bool = False
    """Whether a message before all turns carries a summary or the screen."""
    is_trimmed: bool = False
    """Shortened for this call only; the next context need not begin with this one."""
    head_seq: int = 0
    """The newest entry when this context was made."""
    shortened: JsonObject | None = None
    """The numbers of older turns that are shortened or omitted in it for the first time."""
    renderings: KeptRenderings = field(default_factory=KeptRenderings)

    @property
    def sent(self) -> SentContext:
        """The description of the sent context that the output entry records."""
        return SentContext(
            tokens=self.tokens,
            budget_tokens=self.call_budget.budget_tokens or 0,
            tools_digest=self.call_budget.offer.digest,
            epoch_seq=self.selection.epoch_seq,
            head_seq=self.head_seq,
            trimmed=self.is_trimmed,
        )


def view_of(
    parts: ContextParts, measured: list[Measured], *, has_head: bool, is_trimmed: bool = False
) -> ContextView:
    sizes = [each.tokens for each in measured]
    return ContextView(
        messages=tuple([each.message for each in measured]),
        sizes=sizes,
        tokens=sum(sizes) + parts.call_budget.tools_tokens,
        call_budget=parts.call_budget,
        selection=parts.selection,
        has_head=has_head,
        is_trimmed=is_trimmed,
        head_seq=parts.head_seq,
    )
