"""Collects the parts of one call's context: turns, the epoch's plan, token counts.

A context is the system instruction, a head (summary and live screen), older turns as the
epoch shows them, and the running turn. Nothing here changes the history. Tokens are counted
when they are needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias, assert_never

from msgspec import Struct, structs

from nplt_server.context.messages import (
    IMAGE_TOKENS,
    AttachmentContents,
    ContextEntry,
    ContextMessage,
    ContextStep,
    ModelInputMessage,
    ModelOutputMessage,
    ScreensInTurns,
    SystemMessage,
    ToolResultsMessage,
    last_screen_in,
    message_of,
    screen_sources,
    screens_after,
    steps_of,
)
from nplt_server.tokens import TokenCounter
from nplt_server.tools import ToolOffer
from nplt_storage.entries import (
    CompactionEntry,
    EpochEntry,
    LevelOfDetail,
    ModelInputEntry,
    ModelOutputEntry,
    SentContext,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.turns import Turn

# ------------------------------------------------------------------------------
# Selection: which turns are shown, and at which level
#
# An epoch gives three numbers; older turns are shown in less detail. A model's summary from
# before the epoch replaces the turns it covers, unless it was cleared or quarantined. With
# `turns_max` (the setting `max_turns`) only the newest turns are shown. The selection depends
# only on the record, so it is the same after a restart. Turns after the epoch are live, so a
# context only grows.


class EpochPlan(Struct, frozen=True, kw_only=True):
    """The levels of older turns, by turn number: up to `omitted_through` not shown, up to
    `gist_through` as gist, up to `summary_through` as summary, later ones live."""

    omitted_through: int = 0
    gist_through: int = 0
    summary_through: int = 0


_ALL_LIVE: Final = EpochPlan()
_NO_TOOLS: Final = ToolOffer()


class Selection(Struct, frozen=True, kw_only=True):
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


def select(history: ConversationHistory, epoch: EpochEntry | None, *, number: int) -> Selection:
    """Selects the turns to show to turn `number`."""
    shown = history.shown_turns
    is_last = not shown or shown[-1].number < number  # nearly always
    until = len(shown) if is_last else bisect_left(shown, number, key=_number)
    turns_max = history.turns_max
    first = 0 if turns_max is None else max(0, until - turns_max)
    if epoch is None:
        return Selection(plan=EpochPlan(), first=first, until=until)
    quarantined = history.quarantined
    summaries = [e for e in history.compactions if e.seq < epoch.seq and e.seq not in quarantined]
    plan = EpochPlan(
        omitted_through=epoch.omitted_through,
        gist_through=epoch.gist_through,
        summary_through=epoch.summary_through,
    )
    return Selection(
        plan=plan,
        epoch_seq=epoch.seq,
        compaction=summaries[-1] if summaries else None,
        first=max(first, bisect_right(shown, plan.omitted_through, key=_number)),
        until=until,
    )


def _number(turn: Turn) -> int:
    return turn.number


# ------------------------------------------------------------------------------
# Token counts of messages, remembered by entry and level
#
# Every message and tool call also costs a few tokens for the format around it.

MESSAGE_TOKENS: Final = 4
CALL_TOKENS: Final = 8
"""For a tool call, and again for its result: both carry the call's id."""

_Key: TypeAlias = tuple[str, LevelOfDetail, bool, bool]


class Measured(Struct, frozen=True, gc=False):
    message: ContextMessage
    tokens: int


class Measure:
    """Builds the messages of one conversation's entries, counts their tokens and remembers
    both. Bound to one token counter."""

    __slots__ = ("_counter", "_remembered", "_remembered_max", "attachments", "counted")

    def __init__(
        self,
        counter: TokenCounter,
        *,
        attachments: AttachmentContents | None = None,
        remembered_max: int = 16_384,
    ) -> None:
        self.attachments = attachments or AttachmentContents()
        """Attachment contents, loaded by the caller before use."""
        self._counter = counter
        self._remembered_max = remembered_max
        self._remembered: dict[_Key, tuple[ContextEntry, Measured]] = {}
        self.counted = 0
        """Messages counted so far; a counter for tests."""

    def text(self, text: str) -> int:
        return self._counter.count(text) if text else 0

    def message(self, message: ContextMessage) -> Measured:
        self.counted += 1
        return Measured(message, MESSAGE_TOKENS + self._tokens(message))

    def entry(
        self,
        entry: ContextEntry,
        level: LevelOfDetail,
        *,
        with_screen: bool = False,
        takes_images: bool = False,
    ) -> Measured:
        key = (entry.id, level, with_screen, takes_images)
        known = self._remembered.get(key)
        # A redacted entry, or a copy made for showing, has the same id.
        if known is not None and known[0] is entry:
            return known[1]
        message = message_of(
            entry,
            level,
            with_screen=with_screen,
            takes_images=takes_images,
            contents=self.attachments,
        )
        measured = self.message(message)
        if entry.id:
            if len(self._remembered) >= self._remembered_max:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[key] = entry, measured
        return measured

    def _tokens(self, message: ContextMessage) -> int:
        match message:
            case SystemMessage():
                return self.text(message.instruction)
            case ModelInputMessage():
                return self.text(message.text) + IMAGE_TOKENS * len(message.images)
            case ModelOutputMessage():
                opaque, tokens = 0, self.text(message.content)
                if message.reasoning:
                    tokens += self.text(message.reasoning)
                for call in message.tool_calls:
                    tokens += CALL_TOKENS + self.text(call.tool_name)
                    tokens += self.text(call.raw_arguments)
                for part in message.parts:
                    opaque += len(str(part.data)) if part.data else 0
                return tokens + opaque // 4
            case ToolResultsMessage():
                texts = sum(CALL_TOKENS + self.text(text) for text in message.texts)
                return texts + IMAGE_TOKENS * len(message.images)
        assert_never(message)


def tokens_of(measured: Iterable[Measured]) -> int:
    return sum(each.tokens for each in measured)


SEARCH_TOOL: Final = "search_history"
SHORTENED: Final = "[Turns marked [gist] or [summary] are shown shortened, answers too.]"

PromptReference: TypeAlias = str | ModelInputEntry | None
"""A turn's id, a prompt not written yet, or no prompt at all: a turn yet to come."""


class ContextSource(Struct, frozen=True, kw_only=True):
    measure: Measure
    instruction: str
    selection: Selection
    shown_turns: Sequence[Turn]
    own: Turn | None
    quarantined: frozenset[int]
    screen: str | None = None
    """For the head: the live screen at the beginning of the shown turns."""
    screen_seq: int = 0
    """Before the first epoch: the newest entry whose text is on the screen."""
    screen_before_own: str = ""
    """The live screen at the beginning of the turn itself."""
    screens_after: int = 0
    """Screens in entries up to this seq are out of date."""
    screens: bool = True
    """Whether messages carry the screens written into their entries."""
    takes_images: bool = False
    newest_seq: int | None = None
    """Under the policy `newest_live`: the seq of the only live input or results."""
    left_out: int = 0
    """How many older turns are not shown, and no summary stands for them."""
    turns_max: int | None = None
    """If older turns than these are not shown by the setting `max_turns`."""
    offer: ToolOffer = _NO_TOOLS
    """One of the tools may find what is not shown."""

    @property
    def turns(self) -> Iterator[Turn]:
        """Older turns that are shown at some level, oldest first."""
        return self._shown_at(range(self.selection.first, self.selection.until))

    @property
    def newest_first(self) -> Iterator[Turn]:
        return self._shown_at(range(self.selection.until - 1, self.selection.first - 1, -1))

    def _shown_at(self, places: range) -> Iterator[Turn]:
        turns = (self.shown_turns[place] for place in places)
        return (turn for turn in turns if not self.selection.covers(turn))

    def messages_of(self, turns: Iterable[Turn]) -> list[Measured]:
        return [
            measured
            for turn in turns
            if (level := self.selection.level_of(turn)) is not None
            for measured in self.turn(turn, level)
        ]

    def system(self) -> list[Measured]:
        if not self.instruction:
            return []
        return [self.measure.message(SystemMessage(instruction=self.instruction))]

    def head(self) -> list[Measured]:
        message = head_message(
            self.selection, self.screen, screen_seq=self.screen_seq, notice=self.notice
        )
        return [] if message is None else [self.measure.message(message)]

    def head_tokens_max(self) -> int:
        """The most that the head may take: it says which turns are left out, and that is not
        known before the rest is."""
        if self.selection.first == self.selection.until:
            return tokens_of(self.head())
        none = structs.replace(self.selection, first=self.selection.until)
        said = tokens_of(self.with_selection(none).head())
        return said + self.measure.text(SHORTENED) + MESSAGE_TOKENS

    @property
    def notice(self) -> str:
        """Tells the model that turns are not shown, or shown in less detail. The same for all
        of an epoch."""
        lines: list[str] = []
        if told := self._told_of_left_out():
            can_search = any(tool.name == SEARCH_TOOL for tool in self.offer.descriptions)
            how = f"; the tool {SEARCH_TOOL} finds what was said" if can_search else ""
            lines.append(f"[{told}{how}.]")
        is_aged = self.newest_seq is not None
        if is_aged or self.selection.plan != _ALL_LIVE:
            first = next(self.turns, None)
            if first is not None and (is_aged or self.selection.level_of(first) != "live"):
                lines.append(SHORTENED)
        return "\n".join(lines)

    def _told_of_left_out(self) -> str:
        match self.left_out, self.turns_max:
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

    def with_selection(self, selection: Selection) -> ContextSource:
        """This source with fewer turns."""
        more = self.shown_turns[self.selection.first : selection.first]
        left_out = self.left_out + sum(not selection.covers(turn) for turn in more)
        return structs.replace(self, selection=selection, left_out=left_out)

    def turn(self, turn: Turn, level: LevelOfDetail) -> list[Measured]:
        return self.steps(steps_of(turn, self.quarantined), level)

    def turn_tokens(self, turn: Turn, level: LevelOfDetail) -> int:
        return tokens_of(self.turn(turn, level))

    def steps(self, steps: Iterable[ContextStep], level: LevelOfDetail = "live") -> list[Measured]:
        return [measured for step in steps for measured in self.step(step, level)]

    def step(self, step: ContextStep, level: LevelOfDetail) -> list[Measured]:
        measured = []
        for entry in step:
            shown = level
            if level == "live" and self.newest_seq is not None:
                is_output = isinstance(entry, ModelOutputEntry)
                shown = "live" if is_output or entry.seq == self.newest_seq else "summary"
            with_screen = self.screens and entry.seq > self.screens_after
            measured.append(
                self.measure.entry(
                    entry, shown, with_screen=with_screen, takes_images=self.takes_images
                )
            )
        return measured

    def own_steps(self) -> list[ContextStep]:
        return [] if self.own is None else list(steps_of(self.own, self.quarantined))

    def everything(self) -> list[Measured]:
        own = self.steps(self.own_steps())
        return [*self.system(), *self.head(), *self.messages_of(self.turns), *own]

    def tokens(self, limit: int) -> int:
        """The tokens of the whole context. Counting stops once they exceed the limit."""
        tokens = tokens_of([*self.system(), *self.head(), *self.steps(self.own_steps())])
        for turn in self.newest_first:
            if tokens > limit:
                break
            level = self.selection.level_of(turn)
            tokens += 0 if level is None else self.turn_tokens(turn, level)
        return tokens

    def with_screen_in_head(self) -> ContextSource:
        """Moves the newest live screen into the head, because the entry that carries the
        screen may be shown in less detail."""
        written = None
        if self.own is not None:
            written = last_screen_in(self.own, self.screens_after, self.quarantined)
        screen = self.screen_before_own if written is None else written
        return structs.replace(self, screen=screen or None, screens=False)

    def aged(self) -> ContextSource:
        """This source under the policy `newest_live`: only the newest input or results are
        live."""
        newest = next(self._newest_user_entries(), None)
        return structs.replace(self.with_screen_in_head(), newest_seq=newest.seq if newest else 0)

    def _newest_user_entries(self) -> Iterator[ContextEntry]:
        own = [] if self.own is None else [self.own]
        for turn in chain(own, self.newest_first):
            for step in reversed(list(steps_of(turn, self.quarantined))):
                yield from (e for e in reversed(step) if not isinstance(e, ModelOutputEntry))


def gather_source(
    history: ConversationHistory,
    prompt_ref: PromptReference,
    *,
    screens: ScreensInTurns,
    measure: Measure,
    epoch: EpochEntry | None,
    call_budget: CallBudget,
) -> ContextSource:
    """The source of the next call. An unknown turn id counts as a turn that is yet to come."""
    if isinstance(prompt_ref, ModelInputEntry):
        prompt = structs.replace(prompt_ref, seq=history.head_seq + 1)
        own: Turn | None = Turn(number=prompt.seq, prompt=prompt, entries=[prompt])
    else:
        own = None if prompt_ref is None else history.turn(prompt_ref)
    number = history.head_seq + 1 if own is None else own.number
    selection = select(history, epoch, number=number)
    shown = history.shown_turns
    first, until = selection.first, selection.until
    if epoch is history.epoch:
        after_seq, quarantined = screens.basis()
        screen = screens.before(shown[first].number if first < until else number)
        before_own = screens.before(number)
    else:  # a draft, with a screen of its own
        after_seq, quarantined = screens_after(history, epoch), frozenset(history.quarantined)
        screen = before_own = epoch.screen if epoch is not None else ""
    return ContextSource(
        measure=measure,
        instruction=history.system_instruction or "",
        selection=selection,
        shown_turns=shown,
        own=own,
        quarantined=quarantined,
        screen=screen or None,
        screen_before_own=before_own,
        screen_seq=max(screen_sources(history).values(), default=0)
        if screen and epoch is None
        else 0,
        screens_after=after_seq,
        takes_images=call_budget.takes_images,
        left_out=epoch.omitted_turns if epoch is not None else 0,
        turns_max=history.turns_max if _is_windowed(history, until) else None,
        offer=call_budget.offer,
    )


def _is_windowed(history: ConversationHistory, until: int) -> bool:
    most = history.turns_max
    return most is not None and (until > most or (until == most and history.first_seq > 1))


def head_message(
    selection: Selection, screen: str | None, *, screen_seq: int = 0, notice: str = ""
) -> ModelInputMessage | None:
    compaction = selection.compaction
    if compaction is None and screen is None and not notice:
        return None
    content = notice
    if compaction is not None:
        span = f"entries {compaction.from_seq} to {compaction.through_seq}"
        summary = f"## Summary of what came before ({span})\n{compaction.content}"
        content = f"{notice}\n\n{summary}" if notice else summary
    seq = selection.epoch_seq or screen_seq
    return ModelInputMessage(seq=seq, content=content, live_screen=screen)


# ------------------------------------------------------------------------------
# The plan of an epoch: the level of each older turn
#
# From the newest turn back: live while there is room, then summary, then gist, then not
# shown; whole turns only, so no tool call loses its result. An epoch fills part of the budget
# and leaves the rest to grow into, because each epoch invalidates the provider's cache.
# Planning stops at the first turn that is not shown.

KEEP: Final = 0.5
"""How much of the budget a new epoch fills."""
THRESHOLD: Final = 0.85
"""How much of the budget may be filled before a new epoch begins."""
_SHARES: Final[Mapping[LevelOfDetail, float]] = {"live": 0.6, "summary": 0.85, "gist": 1.0}
"""The fraction of the room for older turns at which each level ends."""
_LEVELS: Final = tuple(_SHARES)

TurnTokens: TypeAlias = Callable[[Turn, LevelOfDetail], int]
_Limits: TypeAlias = Mapping[LevelOfDetail, int]


def plan_epoch(
    newest_first: Iterable[Turn],
    *,
    budget: int,
    fixed: int,
    tokens: TurnTokens,
    keep: float = KEEP,
) -> EpochPlan:
    """`fixed`: the tokens of the context besides these turns."""
    room = max(0, int(keep * budget) - fixed)
    limits: _Limits = {level: int(share * room) for level, share in _SHARES.items()}
    spare = max(room, int(THRESHOLD * budget) - fixed)
    # A prompt most likely refers to the turn before it, so that turn gets more room.
    limits_now: _Limits = {"live": limits["live"], "summary": spare, "gist": spare}
    level: LevelOfDetail = "live"
    taken, all_live, omitted_through = 0, 0, 0
    through: dict[LevelOfDetail, int] = {}
    for turn in newest_first:
        if all_live <= room:
            all_live += tokens(turn, "live")
        fitting = _first_that_fits(turn, level, taken, limits_now, tokens)
        if fitting is None:
            omitted_through = turn.number
            break
        level = fitting
        taken += tokens(turn, level)
        through.setdefault(level, turn.number)
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


def _first_that_fits(
    turn: Turn, level: LevelOfDetail, taken: int, limits: _Limits, tokens: TurnTokens
) -> LevelOfDetail | None:
    for candidate in _LEVELS[_LEVELS.index(level) :]:
        if taken + tokens(turn, candidate) <= limits[candidate]:
            return candidate
    return None


class CallBudget(Struct, frozen=True, kw_only=True):
    """Token budget, tools and image support of one call."""

    budget_tokens: int | None = None
    """The tokens that may be sent; `None`: no limit."""
    tools_tokens: int = 0
    offer: ToolOffer = _NO_TOOLS
    """The tools sent with the call. Fixed here, even if the tools on offer change meanwhile."""
    threshold: float = THRESHOLD
    keep: float = KEEP
    takes_images: bool = False
    """Whether the model can be shown images."""


class ContextView(Struct, frozen=True, kw_only=True):
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

    @property
    def sent(self) -> SentContext:
        """What the output entry records about the context that was sent."""

        return SentContext(
            tokens=self.tokens,
            budget_tokens=self.call_budget.budget_tokens or 0,
            tools_digest=self.call_budget.offer.digest,
            epoch_seq=self.selection.epoch_seq,
            head_seq=self.head_seq,
            trimmed=self.is_trimmed,
        )


def view_of(
    measured: list[Measured],
    call_budget: CallBudget,
    selection: Selection,
    *,
    has_head: bool,
    is_trimmed: bool = False,
) -> ContextView:
    sizes = [each.tokens for each in measured]
    return ContextView(
        messages=[each.message for each in measured],
        sizes=sizes,
        tokens=sum(sizes) + call_budget.tools_tokens,
        call_budget=call_budget,
        selection=selection,
        has_head=has_head,
        is_trimmed=is_trimmed,
    )
