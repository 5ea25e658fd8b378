"""Collects the parts of one call's context: turns, the epoch's plan, token counts.

A context is the system instruction, a head (summary and live screen), older turns as the
epoch shows them, and the running turn. Nothing here changes the history. Tokens are counted
when they are needed. What does not fit is shortened for one call (`fit`), without a model and
without a new epoch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from typing import Final, TypeAlias, assert_never

from msgspec import Struct, structs

from nplt_server.context.messages import (
    IMAGE_TOKENS,
    AttachmentContents,
    ContextMessage,
    ContextStep,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
    cut_middle,
    last_screen_in,
    left_out,
    message_of,
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
    ToolCallResult,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.turns import ContextEntry, Turn

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

    @property
    def summary(self) -> str:
        if (summary := self.compaction) is None:
            return ""
        span = f"entries {summary.from_seq} to {summary.through_seq}"
        return f"## Summary of what came before ({span})\n{summary.content}"


def turns_before(shown: Sequence[Turn], number: int) -> int:
    """How many of the shown turns come before turn `number`."""
    is_last = not shown or shown[-1].number < number  # nearly always
    return len(shown) if is_last else bisect_left(shown, number, key=_number)


def select(history: ConversationHistory, epoch: EpochEntry | None, *, number: int) -> Selection:
    """Selects the turns to show to turn `number`."""
    shown, turns_max = history.shown_turns, history.turns_max
    until = turns_before(shown, number)
    first = 0 if turns_max is None else max(0, until - turns_max)
    if epoch is None:
        return Selection(plan=_ALL_LIVE, first=first, until=until)
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


class Measured(Struct, frozen=True, gc=False):
    message: ContextMessage
    tokens: int


class Measure:
    """Builds the messages of one conversation's entries, counts their tokens and remembers
    both. Bound to one token counter."""

    def __init__(
        self,
        counter: TokenCounter,
        *,
        attachments: AttachmentContents | None = None,
        remembered_max: int = 16_384,
    ) -> None:
        self.attachments = attachments or AttachmentContents()
        self._counter = counter
        self._remembered_max = remembered_max
        self._remembered: dict[
            tuple[str, LevelOfDetail, bool, bool], tuple[ContextEntry, Measured]
        ] = {}
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
                tokens = self.text(message.content) + self.text(message.reasoning)
                for call in message.tool_calls:
                    tokens += CALL_TOKENS + self.text(call.tool_name)
                    tokens += self.text(call.raw_arguments)
                opaque = sum(len(str(part.data)) for part in message.parts if part.data)
                return tokens + opaque // 4
            case ToolResultsMessage():
                texts = sum(CALL_TOKENS + self.text(text) for text in message.texts)
                return texts + IMAGE_TOKENS * len(message.images)
        assert_never(message)


def tokens_of(measured: Iterable[Measured]) -> int:
    return sum(each.tokens for each in measured)


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


def plan_epoch(
    newest_first: Iterable[Turn],
    *,
    budget: int,
    fixed: int,
    tokens: Callable[[Turn, LevelOfDetail], int],
    keep: float = KEEP,
) -> EpochPlan:
    """`fixed`: the tokens of the context besides these turns."""
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


# ------------------------------------------------------------------------------
# The budget of a call, and the context that is made for it


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

    @property
    def room(self) -> int | None:
        """For messages."""
        return None if self.budget_tokens is None else self.budget_tokens - self.tools_tokens


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


SEARCH_TOOL: Final = "search_history"
SHORTENED: Final = "[Turns marked [gist] or [summary] are shown shortened, answers too.]"

PromptReference: TypeAlias = str | ModelInputEntry | None
"""A turn's id, a prompt not written yet, or no prompt at all: a turn yet to come."""


class ContextSource(Struct, frozen=True, kw_only=True):
    measure: Measure
    call_budget: CallBudget
    head_seq: int
    instruction: str
    selection: Selection
    shown_turns: Sequence[Turn]
    own: Turn | None
    quarantined: frozenset[int]
    screen: str | None
    """For the head: the live screen at the beginning of the shown turns."""
    screen_seq: int
    """Before the first epoch: the newest entry whose text is on the screen."""
    screen_before_own: str
    """The live screen at the beginning of the turn itself."""
    screens_after: int
    """Screens in entries up to this seq are out of date."""
    screens: bool = True
    """Whether messages carry the screens written into their entries."""
    newest_seq: int | None = None
    """Under the policy `newest_live`: the seq of the only live input or results."""
    left_out: int
    """How many older turns are not shown, and no summary stands for them."""
    turns_max: int | None
    """If older turns than these are not shown by the setting `max_turns`."""

    def turns(self, *, newest_first: bool = False) -> Iterator[Turn]:
        """Older turns that are shown at some level."""
        places = range(self.selection.first, self.selection.until)
        for place in reversed(places) if newest_first else places:
            if not self.selection.covers(turn := self.shown_turns[place]):
                yield turn

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
        content = "\n\n".join(filter(None, (self.notice, self.selection.summary)))
        if not content and self.screen is None:
            return []
        seq = self.selection.epoch_seq or self.screen_seq
        message = ModelInputMessage(seq=seq, content=content, live_screen=self.screen)
        return [self.measure.message(message)]

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
            tools = self.call_budget.offer.descriptions
            can_search = any(tool.name == SEARCH_TOOL for tool in tools)
            how = f"; the tool {SEARCH_TOOL} finds what was said" if can_search else ""
            lines.append(f"[{told}{how}.]")
        is_aged = self.newest_seq is not None
        if is_aged or self.selection.plan != _ALL_LIVE:
            first = next(self.turns(), None)
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
            measured.append(
                self.measure.entry(
                    entry,
                    shown,
                    with_screen=self.screens and entry.seq > self.screens_after,
                    takes_images=self.call_budget.takes_images,
                )
            )
        return measured

    def own_steps(self) -> list[ContextStep]:
        return [] if self.own is None else list(steps_of(self.own, self.quarantined))

    def is_too_long(self) -> bool:
        """Counting stops once the limit is exceeded."""
        if (room := self.call_budget.room) is None:
            return False
        tokens = tokens_of([*self.system(), *self.head(), *self.steps(self.own_steps())])
        for turn in self.turns(newest_first=True):
            if tokens > room:
                break
            tokens += tokens_of(self.messages_of([turn]))
        return tokens > room

    def view(
        self, measured: list[Measured], *, has_head: bool, is_trimmed: bool = False
    ) -> ContextView:
        sizes = [each.tokens for each in measured]
        return ContextView(
            messages=[each.message for each in measured],
            sizes=sizes,
            tokens=sum(sizes) + self.call_budget.tools_tokens,
            call_budget=self.call_budget,
            selection=self.selection,
            has_head=has_head,
            is_trimmed=is_trimmed,
            head_seq=self.head_seq,
        )

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
        own = [] if self.own is None else [self.own]
        newest = (
            entry.seq
            for turn in chain(own, self.turns(newest_first=True))
            for step in reversed(list(steps_of(turn, self.quarantined)))
            for entry in reversed(step)
            if not isinstance(entry, ModelOutputEntry)
        )
        return structs.replace(self.with_screen_in_head(), newest_seq=next(newest, 0))


# ------------------------------------------------------------------------------
# Fitting, without a model, for this call only
#
# For a window too small for the running epoch, a giant prompt, or results that pile up inside
# one turn. In this order:
#
#     older turns             as a new epoch would show them, down to none
#     the head                cut to a quarter of the room
#     the turn's older steps  to summary, to gist, then removed one by one
#     its newest results      cut in their middle; a tool can read the rest
#     the prompt              cut in its middle, last
#
# Tool calls and results stay together. The same record gives the same context. If the
# instruction and the tools alone don't fit, `ContextTooSmall` is raised. The current live
# screen is shown in the head.

_FILLED: Final = 0.7
"""How much of the budget is filled, so that a few more calls of the same turn fit."""
_PROMPT_TOKENS_MIN: Final = 32
"""Enough for the mark that replaces the middle of a prompt."""
_SHORTER: Final[tuple[LevelOfDetail, ...]] = ("summary", "gist")


class ContextTooSmall(Exception):
    """The instruction and the tools exceed the budget. The user has to choose a model with a
    larger window, or offer fewer tools."""

    def __init__(self, needed: int, budget: int) -> None:
        super().__init__(
            f"instruction and tools alone take {needed:,} of {budget:,} tokens, "
            "and leave no room for a prompt; shorten the instruction or choose another model"
        )
        self.needed = needed
        self.budget = budget


def fit(source: ContextSource) -> ContextView:
    assert source.call_budget.budget_tokens is not None
    budget = source.call_budget.budget_tokens
    source = source.with_screen_in_head()
    system = source.system()
    room = budget - source.call_budget.tools_tokens - tokens_of(system)
    if room < _PROMPT_TOKENS_MIN:
        raise ContextTooSmall(budget - room, budget)
    head_room = min(source.head_tokens_max(), room // 4)
    own = _fit_own(source, room - head_room)
    source = source.with_selection(_choose_turns(source, own, fixed=budget - room + head_room))
    turns = source.messages_of(source.turns())
    head = source.head()
    if tokens_of(head) > head_room:
        message = head[0].message
        assert isinstance(message, ModelInputMessage)
        # Summary and screen are cut as one text.
        text = cut_middle(message.text, head_room - MESSAGE_TOKENS, count=source.measure.text)
        cut = structs.replace(message, content=text, live_screen=None, level="cut")
        head = [source.measure.message(cut)] if text else []
    return source.view([*system, *head, *turns, *own], has_head=bool(head), is_trimmed=True)


def _choose_turns(source: ContextSource, own: list[Measured], *, fixed: int) -> Selection:
    """Chooses the older turns by the size of the prompt alone if the rest of the running
    turn fits too: then all calls of the turn see the same older turns."""
    budget, all_own = source.call_budget.budget_tokens or 0, tokens_of(own)
    selection = source.selection
    for regarded in (tokens_of(own[:1]), all_own):
        plan = plan_epoch(
            source.turns(newest_first=True),
            budget=budget,
            fixed=fixed + regarded,
            tokens=source.turn_tokens,
            keep=_FILLED,
        )
        selection = source.selection.within(plan, source.shown_turns)
        chosen = structs.replace(source, selection=selection)
        if fixed + all_own + tokens_of(chosen.messages_of(chosen.turns())) <= budget:
            break
    return selection


def _fit_own(source: ContextSource, room: int) -> list[Measured]:
    steps = source.own_steps()
    prompt: list[Measured] = []
    if steps and isinstance(steps[0][0], ModelInputEntry):
        prompt, steps = source.step(steps[0], "live"), steps[1:]
    newest = source.steps(steps[-1:])
    older = _fit_older(source, steps[:-1], room, tokens_of(prompt) + tokens_of(newest))
    left = room - tokens_of(older)
    if tokens_of(prompt) + tokens_of(newest) > left:
        for_prompt = min(tokens_of(prompt), _PROMPT_TOKENS_MIN)
        for_newest = min(max(left - tokens_of(prompt), left // 2), left - for_prompt)
        newest = [cut for step in steps[-1:] for cut in _cut_step(source, step, for_newest)]
        left -= tokens_of(newest)
        prompt = [cut for each in prompt for cut in _cut_text(each, left, source.measure)]
    return [*prompt, *older, *newest]


def _fit_older(
    source: ContextSource, steps: list[ContextStep], room: int, others: int
) -> list[Measured]:
    """Shortens the steps, oldest first, and then removes them, until the others fit or the
    steps take no more than a quarter of the room."""
    shown = [source.step(step, "live") for step in steps]
    tokens = sum(map(tokens_of, shown))
    for level, place in product(_SHORTER, range(len(steps))):
        if tokens + others <= room:
            break
        shorter = source.step(steps[place], level)
        tokens += tokens_of(shorter) - tokens_of(shown[place])
        shown[place] = shorter
    quarter = min(room // 4, room - _PROMPT_TOKENS_MIN)
    while shown and tokens + others > room and tokens > quarter:
        tokens -= tokens_of(shown.pop(0))
    return [measured for step in shown for measured in step]


# ------------------------------------------------------------------------------
# Cutting the steps of a running turn
#
# A cut result says how to read the rest. If not even that fits, the whole step is left out:
# providers refuse a tool call without its result.


def _cut_step(source: ContextSource, step: ContextStep, tokens_max: int) -> list[Measured]:
    live = source.step(step, "live")
    if tokens_of(live) <= tokens_max:
        return live
    message = live[-1].message
    if not isinstance(message, ToolResultsMessage):
        rest = live[1:]  # of a rejected answer: the request to mend it
        cut = _cut_text(live[0], tokens_max - tokens_of(rest), source.measure)
        return [*cut, *rest] if cut else []
    # The output and its tool calls, in as much detail as fits; at least its gist.
    output = live[0]
    for level in _SHORTER:
        if output.tokens > tokens_max // 4:
            output = source.step(step[:1], level)[0]
    results = _cut_results(message, tokens_max - output.tokens, source.measure)
    return [] if results is None else [output, results]


def _cut_text(measured: Measured, tokens_max: int, measure: Measure) -> list[Measured]:
    """A prompt or an answer, cut in its middle; an empty list if there is no room for it."""
    message = measured.message
    if measured.tokens <= tokens_max:
        return [measured]
    if not isinstance(message, ModelInputMessage | ModelOutputMessage):
        return []
    taken = MESSAGE_TOKENS
    if isinstance(message, ModelInputMessage) and (message.attachments or message.schema):
        bare = tuple(one.without_contents("attachment_no_room") for one in message.attachments)
        message = structs.replace(message, attachments=bare, schema="", level="cut")
        measured = measure.message(message)
        if measured.tokens <= tokens_max:
            return [measured]
        taken = measured.tokens - measure.text(message.content)
    content = cut_middle(message.content, tokens_max - taken, count=measure.text)
    cut = structs.replace(message, content=content, level="cut")
    return [measure.message(cut)] if content else []


def _cut_results(message: ToolResultsMessage, tokens_max: int, measure: Measure) -> Measured | None:
    marks = MESSAGE_TOKENS + len(message.results) * CALL_TOKENS
    sizes = [measure.text(result.result) for result in message.results]
    shares = fair_shares(sizes, tokens_max - marks)
    results: list[ToolCallResult] = []
    for result, size, share in zip(message.results, sizes, shares, strict=True):
        text = result.result if size <= share else _cut_result(result, share, measure)
        if result.result and not text:
            return None
        results.append(structs.replace(result, result=text))
    bare = structs.replace(message, results=tuple(results), images=(), level="cut")
    return measure.message(bare)


def _cut_result(result: ToolCallResult, tokens_max: int, measure: Measure) -> str:
    def readable(characters: int) -> str:
        how = f'read_result reads them, tool_call_id "{result.tool_call_id}"'
        return f"[… {characters:,} characters left out: {how} …]"

    text = cut_middle(result.result, tokens_max, count=measure.text, mark=readable)
    return text or cut_middle(result.result, tokens_max, count=measure.text, mark=left_out)


def fair_shares(sizes: Sequence[int], room: int) -> list[int]:
    """Divides the room: sizes below an equal share are granted in full, the others share
    the rest equally."""
    shares = [0] * len(sizes)
    left = max(0, room)
    smallest_first = sorted(range(len(sizes)), key=sizes.__getitem__)
    for done, place in enumerate(smallest_first):
        shares[place] = min(sizes[place], left // (len(sizes) - done))
        left -= shares[place]
    return shares
