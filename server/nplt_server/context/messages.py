"""The messages of a context, and how entries become messages at a level of detail.

The messages do not depend on a vendor's format. This module also groups a turn's entries
into steps that are shown together or not at all, and finds the current live screen.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import ClassVar, Final, Literal, TypeAlias, assert_never

import orjson
from msgspec import Struct, field, structs

from nplt_server.digest import levels_of
from nplt_server.digest.text import cut, place_to_resume, place_to_stop
from nplt_storage.entries import (
    Entry,
    EpochEntry,
    LevelOfDetail,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    NotebookEntry,
    OutputPart,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
    WidgetEntry,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.messages import text_at_level
from nplt_storage.turns import ContextEntry, Turn

# ------------------------------------------------------------------------------
# Files attached to a prompt, as a model is shown them
#
# A text file is part of the message's text, fenced, under its name. An image is a content
# block of its own, for models that accept images. A file that is not shown is named, with a
# reason. Contents are read elsewhere, before the context is built: this module does no I/O.

AttachmentReason: TypeAlias = Literal[
    "attachment_missing",  # erased or deleted
    "attachment_unreadable",  # reading failed
    "attachment_not_taken",  # neither text nor an image that this model accepts
    "attachment_too_large",  # an image over the size limit
    "attachment_too_many",  # an older image; newer ones fill the limit
    "attachment_cut",  # a text of which only the beginning is shown
    "attachment_no_room",  # its contents do not fit the model's window
    "attachment_less_detail",  # its turn is shown in less detail
]
IMAGE_TOKENS: Final = 1_600
"""What vendors count for a large image; the real number is known only afterwards."""
_FENCE: Final = re.compile(r"`{3,}")
_WHY: Final[Mapping[str, str]] = {
    "attachment_missing": "it is not there any more",
    "attachment_unreadable": "it could not be read",
    "attachment_not_taken": "you can't be shown files of this kind",
    "attachment_too_large": "it is too large",
    "attachment_too_many": "there are too many pictures",
    "attachment_no_room": "there is no room for it",
    "attachment_less_detail": "it was shown with an earlier message",
}


class ContextAttachment(Struct, frozen=True, kw_only=True):
    name: str
    content_type: str | None = None
    text: str | None = None
    data_base64: str | None = None
    """The data of an image; `content_type` says of which kind."""
    reason: AttachmentReason | None = None
    """Why the contents, or some of them, are missing."""

    def __repr__(self) -> str:
        """Leaves out the contents, so that logs do not repeat whole files."""
        return f"ContextAttachment({self.name!r}, {self.content_type!r}, reason={self.reason!r})"

    @property
    def is_image(self) -> bool:
        return self.data_base64 is not None

    def without_contents(self, reason: AttachmentReason) -> ContextAttachment:
        if self.text is None and not self.is_image:
            return self
        return structs.replace(self, text=None, data_base64=None, reason=reason)

    @property
    def as_text(self) -> str:
        """The attachment's place in the text of the message."""
        if self.text is not None:
            # Longer than any fence in the text.
            fence = "`" * (max((len(each) for each in _FENCE.findall(self.text)), default=2) + 1)
            more = "\n[… the rest is left out …]" if self.reason == "attachment_cut" else ""
            return f"File {self.name}:\n{fence}\n{self.text}{more}\n{fence}"
        if self.is_image:
            return f"[Picture {self.name}]"
        return f"[File {self.name}: {_WHY.get(self.reason or '', 'it is not shown')}]"


_UNKNOWN: Final = ContextAttachment(name="(unknown)", reason="attachment_unreadable")


class AttachmentContents(Struct, frozen=True, kw_only=True):
    """The files attached to prompts, as far as they were read."""

    files: Mapping[str, ContextAttachment] = field(default_factory=dict)
    """By file id."""
    put_away: frozenset[tuple[int, str]] = frozenset()
    """Images left out because there are too many: seq of the prompt, and file id."""

    def shown_with(
        self, entry: ContextEntry, *, is_live: bool, takes_images: bool
    ) -> tuple[ContextAttachment, ...]:
        """The files of the entry, as they are shown at this level to this model."""
        shown: list[ContextAttachment] = []
        for file_id in file_ids_of(entry):
            one = self.files.get(file_id, _UNKNOWN)
            if (entry.seq, file_id) in self.put_away:
                one = structs.replace(one, data_base64=None, reason="attachment_too_many")
            if not is_live:
                one = one.without_contents("attachment_less_detail")
            elif one.is_image and not takes_images:
                one = one.without_contents("attachment_not_taken")
            shown.append(one)
        return tuple(shown)


def file_ids_of(entry: Entry) -> tuple[str, ...]:
    """The files that are shown with it."""
    if isinstance(entry, ToolResultsEntry):
        return tuple(file_id for result in entry.results for file_id in result.attachments)
    return entry.attachments if isinstance(entry, ModelInputEntry) else ()


# ------------------------------------------------------------------------------
# Messages by role
#
#     system        the system instruction
#     model_input   a prompt, and the live screen at that time
#     model_output  a model's text and tool calls
#     tool_result   the results of all tool calls of one output

ContextRole: TypeAlias = Literal["system", "model_input", "model_output", "tool_result"]
ShownLevel: TypeAlias = Literal["live", "summary", "gist", "cut"]
"""The levels of detail of an entry, and `cut`: live, but without its middle."""
LESS_DETAIL: Final = ("summary", "gist")
_SCHEMA_REQUEST: Final = (
    "Answer this with one JSON value that fits the following JSON schema, and with nothing else:"
)
_REPAIR_REQUEST: Final = (
    "This answer does not fit the JSON schema: {fault}. Answer again, with one JSON value that "
    "fits it, and with nothing else."
)


class _Message(Struct, frozen=True, kw_only=True, gc=False):
    seq: int = 0
    """The entry that the message shows; 0 if there is none."""
    level: ShownLevel = "live"


class SystemMessage(_Message, frozen=True, kw_only=True):
    role: ClassVar[ContextRole] = "system"

    instruction: str


class ModelInputMessage(_Message, frozen=True, kw_only=True):
    role: ClassVar[ContextRole] = "model_input"

    content: str
    live_screen: str | None = None
    attachments: tuple[ContextAttachment, ...] = ()
    schema: str = ""
    """The JSON schema that the answer has to fit; empty if there is none."""

    @property
    def text(self) -> str:
        """The text that is sent: attachments, `content` (the prompt's own text), what the
        answer has to fit, and screen. It says if the turn is shown in less detail; on an
        answer a mark would be taken for a part of it, and imitated."""
        text = f"[{self.level}] {self.content}" if self.level in LESS_DETAIL else self.content
        if self.attachments:
            text = "\n\n".join((*(one.as_text for one in self.attachments), text))
        if self.schema:
            text = f"{text}\n\n{_SCHEMA_REQUEST}\n{self.schema}"
        return _with_screen(text, self.live_screen)

    @property
    def images(self) -> tuple[ContextAttachment, ...]:
        return tuple(one for one in self.attachments if one.is_image) if self.attachments else ()


class ModelOutputMessage(_Message, frozen=True, kw_only=True):
    role: ClassVar[ContextRole] = "model_output"

    content: str
    tool_calls: tuple[ToolCallRequest, ...] = ()
    invocation: ModelInvocationDescriptor | None = None
    reasoning: str = ""
    parts: tuple[OutputPart, ...] = ()
    """The provider's own parts, for the same model and an unchanged prefix; otherwise parts
    and reasoning are empty."""


class ToolResultsMessage(_Message, frozen=True, kw_only=True):
    role: ClassVar[ContextRole] = "tool_result"

    results: tuple[ToolCallResult, ...]
    live_screen: str | None = None
    images: tuple[ContextAttachment, ...] = ()
    """Of all results, for a model that sees."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that are sent, one per result; the last one includes the live screen."""
        texts = [result.result for result in self.results]
        texts[-1:] = [_with_screen(text, self.live_screen) for text in texts[-1:]]
        return tuple(texts)


ContextMessage: TypeAlias = (
    SystemMessage | ModelInputMessage | ModelOutputMessage | ToolResultsMessage
)


def _with_screen(content: str, screen: str | None) -> str:
    """Appends the screen, which has its own heading."""
    if screen is None:
        return content
    return f"{content}\n\n{screen}" if content else screen


# ------------------------------------------------------------------------------
# Shortening
#
# A text loses its middle, and a mark says how much is missing. The arguments of a tool call
# stay a JSON object with the same keys, because providers accept nothing else.

_CHARACTERS_PER_TOKEN_MAX: Final = 8
"""The first try keeps this many characters per token; few texts have more."""
_CHARACTERS_MIN: Final = 16
"""With fewer characters left around the mark, only the mark is shown."""


def left_out(characters: int) -> str:
    return f"[… {characters:,} characters left out …]"


def cut_middle(
    text: str,
    tokens_max: int,
    *,
    count: Callable[[str], int],
    mark: Callable[[int], str] = left_out,
) -> str:
    """Beginning, mark and end of a text that is too long; empty if not even the mark fits.
    `mark`: says how many characters are left out."""
    kept = min(len(text), tokens_max * _CHARACTERS_PER_TOKEN_MAX)
    while kept >= _CHARACTERS_MIN:
        stop = place_to_stop(text, 0, kept * 2 // 3)
        resume = place_to_resume(text, max(stop, len(text) - kept // 3), len(text))
        shown = text
        if resume > stop:
            shown = f"{text[:stop]}\n{mark(resume - stop)}\n{text[resume:]}"
        tokens = count(shown)
        if tokens <= tokens_max:
            return shown
        kept = min(kept * 15 // 16, kept * tokens_max // tokens)
    alone = mark(len(text))
    return alone if count(alone) <= tokens_max else ""


def shorten_call(call: ToolCallRequest, characters_max: int) -> ToolCallRequest:
    if len(call.raw_arguments) <= characters_max:
        return call
    if call.arguments is None:
        return structs.replace(call, raw_arguments=cut(call.raw_arguments, characters_max))
    each = max(_CHARACTERS_MIN, characters_max // max(1, len(call.arguments)))
    arguments = dict(call.arguments)
    for name, value in arguments.items():
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        if len(text) > each:
            arguments[name] = cut(text, each)
    raw = orjson.dumps(arguments)
    if len(raw) > 4 * characters_max:
        # The names of the arguments alone are too long.
        arguments = {"arguments": left_out(len(call.raw_arguments))}
        raw = orjson.dumps(arguments)
    return structs.replace(call, raw_arguments=raw.decode(), arguments=arguments)


# ------------------------------------------------------------------------------
# Entries as messages, at a level of detail
#
# Summary and gist are made by rule when an entry is first shown in less detail, unless they
# are in the record; a short entry is shown whole. The live screen is shown at the live level,
# within the current epoch. Long arguments of tool calls are shortened like the rest of an
# output.


_NO_CONTENTS: Final = AttachmentContents()
_ARGUMENT_CHARACTERS_MAX: Final[dict[LevelOfDetail, int]] = {"summary": 1_000, "gist": 200}


def message_of(
    entry: ContextEntry,
    level: LevelOfDetail,
    *,
    with_screen: bool = True,
    takes_images: bool = False,
    contents: AttachmentContents = _NO_CONTENTS,
) -> ContextMessage:
    """The message for an entry. Screen and opaque parts are included only within the current
    epoch (`with_screen`), where the prefix is unchanged."""
    is_live = level == "live"
    is_unchanged = with_screen and is_live
    screen = screen_in(entry) if is_unchanged else None
    files = contents.shown_with(entry, is_live=is_live, takes_images=takes_images)
    match entry:
        case ModelInputEntry():
            schema = entry.options.get("schema") if is_live else None
            return ModelInputMessage(
                seq=entry.seq,
                level=level,
                content=text_at_level(entry.content, entry.sections, level, levels_of),
                live_screen=screen,
                attachments=files,
                schema=orjson.dumps(schema).decode() if isinstance(schema, dict) else "",
            )
        case ModelOutputEntry():
            calls = entry.tool_calls
            if not is_live:
                calls = tuple(shorten_call(each, _ARGUMENT_CHARACTERS_MAX[level]) for each in calls)
            return ModelOutputMessage(
                seq=entry.seq,
                level=level,
                content=text_at_level(entry.content, entry.sections, level, levels_of),
                tool_calls=calls,
                invocation=entry.invocation,
                reasoning=entry.reasoning if entry.parts and is_unchanged else "",
                parts=entry.parts if is_unchanged else (),
            )
        case ToolResultsEntry():
            return ToolResultsMessage(
                seq=entry.seq,
                level=level,
                results=tuple(_result_at(result, level) for result in entry.results),
                live_screen=screen,
                images=tuple(one for one in files if one.is_image),
            )
    assert_never(entry)


def screen_in(entry: ContextEntry) -> str | None:
    """The live screen written into the entry."""
    if isinstance(entry, ToolResultsEntry):
        all_sections = [result.sections for result in reversed(entry.results)]
    else:
        all_sections = [entry.sections]
    for sections in all_sections:
        if sections is not None:
            screen = sections.without_live_screen()[1]
            if screen is not None:
                return screen
    return None


def _result_at(result: ToolCallResult, level: LevelOfDetail) -> ToolCallResult:
    text = text_at_level(result, result.sections, level, levels_of)
    if result.blob is not None and level == "live":
        more = result.blob.size - len(result.result.encode())
        text += f"\n[… {more:,} bytes more: read_result reads on …]"
    return result if text is result.result else structs.replace(result, result=text)


# ------------------------------------------------------------------------------
# Steps: what is shown together or not at all
#
# A step is a prompt, an answer, an output with tool calls and their results, or an answer that
# was rejected with the request to mend it, which is no entry of its own. Providers
# refuse a tool call without a result and a result without a tool call; if one is missing, the
# other is left out. A quarantined prompt or answer is left out. Quarantined tool calls and
# results lose only their text, because a model that does not see its calls repeats them. While
# the tools of a running turn work, the output that called them is not shown.

ContextStep: TypeAlias = tuple[ContextEntry, ...]

HIDDEN_RESULT: Final = "(this ran; its output can't be shown)"


def steps_of(turn: Turn, quarantined: Collection[int]) -> Iterator[ContextStep]:
    return (step for step, _ in steps_from(turn, quarantined, 0) if step)


def steps_from(
    turn: Turn, quarantined: Collection[int], place: int
) -> Iterator[tuple[ContextStep, int]]:
    """The steps from index `place` of the turn's entries on. Each step, which may be empty,
    comes with the index after it. Later entries never change earlier steps."""
    entries = turn.entries
    while place < len(entries):
        entry = entries[place]
        after = entries[place + 1] if place + 1 < len(entries) else None
        calls_tools = isinstance(entry, ModelOutputEntry) and bool(entry.tool_calls)
        if calls_tools and after is None and not turn.is_over:
            return  # the tools' results are yet to come
        taken = 2 if calls_tools and isinstance(after, ToolResultsEntry) else 1
        step = tuple(entries[place : place + taken])
        place += taken
        whole = _whole(step)
        yield _without_quarantined(whole, quarantined) if quarantined else whole, place


def _whole(step: ContextStep) -> ContextStep:
    match step:
        case (ModelInputEntry(),):
            return step
        case (ModelOutputEntry(rejected=str(fault)) as output,) if output.content.strip():
            request = ModelInputEntry(content=_REPAIR_REQUEST.format(fault=fault))
            return output, structs.replace(request, seq=output.seq, timestamp=output.timestamp)
        case (ModelOutputEntry() as output,):
            pass
        case (ModelOutputEntry() as output, ToolResultsEntry() as results):
            call_ids = [call.tool_call_id for call in output.tool_calls]
            if call_ids == [result.tool_call_id for result in results.results]:
                return step
            by_id = {result.tool_call_id: result for result in results.results}
            calls = {call.tool_call_id: call for call in output.tool_calls}
            calls = {call_id: call for call_id, call in calls.items() if call_id in by_id}
            if calls:
                return (
                    structs.replace(output, tool_calls=tuple(calls.values())),
                    structs.replace(results, results=tuple(by_id[call_id] for call_id in calls)),
                )
        case _:  # results without tool calls
            return ()
    if not output.content.strip():
        return ()
    return (structs.replace(output, tool_calls=()) if output.tool_calls else output,)


def _without_quarantined(step: ContextStep, quarantined: Collection[int]) -> ContextStep:
    if all(entry.seq not in quarantined for entry in step):
        return step
    match step:
        case (ModelOutputEntry() as output, ToolResultsEntry() as results):
            pass
        case _:
            return ()
    if output.seq in quarantined:
        calls = tuple(
            structs.replace(
                call, raw_arguments="{}", arguments={}, parse_error=None, parse_warning=None
            )
            for call in output.tool_calls
        )
        output = structs.replace(
            output, content="", reasoning="", tool_calls=calls, sections=None, parts=()
        )
    if results.seq in quarantined:
        hidden = tuple(
            structs.replace(result, result=HIDDEN_RESULT, blob=None, sections=None)
            for result in results.results
        )
        results = structs.replace(results, results=hidden)
    return output, results


# ------------------------------------------------------------------------------
# The current live screen
#
# An epoch entry holds a screen; later screens are written into entries when they differ. A
# turn's model sees the last screen written before the turn. If the entry that holds it is no
# longer shown, the screen is shown before all turns. After a clear or a rollback an earlier
# screen is current again. A quarantine removes all screens written before it, because any of
# them may contain the refused text.
#
# Ended turns are read once, so the cost does not grow with the conversation.


class ScreensInTurns:
    def __init__(self, history: ConversationHistory) -> None:
        self._history = history
        self._head_seq = self._changed_seq = -1
        """The history's, when it was read last."""
        self._basis: tuple[int, frozenset[int]] = (0, frozenset())
        self._first = ""
        """The epoch's screen, which is current until another one is written."""
        self._shown: Sequence[Turn] = ()
        self._read = 0
        """How many of the shown turns have been read."""
        self._screens: list[tuple[int, str]] = []
        """The numbers of the turns that hold a screen, and the last one in each."""

    def basis(self) -> tuple[int, frozenset[int]]:
        """Which entries' screens count now: those after this seq that are not quarantined."""
        history = self._history
        if history.head_seq == self._head_seq:
            return self._basis
        basis, shown = self._basis, history.shown_turns
        if history.changed_seq != self._changed_seq:
            basis, epoch = (screens_after(history), frozenset(history.quarantined)), history.epoch
            self._first = "" if epoch is None or epoch.seq < basis[0] else epoch.screen
            self._changed_seq = history.changed_seq
        if shown is not self._shown or basis != self._basis:
            self._shown, self._basis = shown, basis
            self._read, self._screens = 0, []
        for place in range(self._read, len(shown)):
            text = last_screen_in(shown[place], *basis)
            if text is not None:
                self._screens.append((shown[place].number, text))
        self._read = len(shown)
        self._head_seq = history.head_seq
        return basis

    def before(self, number: int) -> str:
        """The screen that is current at the beginning of turn `number`; empty if none."""
        self.basis()
        place = bisect_left(self._screens, number, key=itemgetter(0))
        return self._screens[place - 1][1] if place else self._first

    def last_shown_to(self, turn_id: str | None) -> str:
        """The last screen that the model of the turn was shown; empty if none. An unknown
        turn counts as one that is yet to come."""
        turn = None if turn_id is None else self._history.turn(turn_id)
        if turn is None:
            return self.before(self._history.head_seq + 1)
        own = last_screen_in(turn, *self.basis())
        return self.before(turn.number) if own is None else own


def screen_sources(history: ConversationHistory) -> dict[str, int]:
    """The entries that hold the current state of the notebook and of widgets, by name."""
    return {
        name or kind: seq
        for (kind, name), seq in history.state_seqs().items()
        if kind in (NotebookEntry.kind, WidgetEntry.kind)
    }


def screens_after(history: ConversationHistory, epoch: EpochEntry | None = None) -> int:
    """The seq after which screens in entries count: that of the epoch (the current one by
    default) or of the newest quarantine."""
    epoch = epoch or history.epoch
    quarantines = (entry.seq for entry in history.quarantined.values())
    return max(epoch.seq if epoch else 0, max(quarantines, default=0))


def last_screen_in(turn: Turn, after_seq: int, quarantined: Collection[int]) -> str | None:
    """The last screen in the turn's entries after `after_seq` that models are shown."""
    if turn.end is not None and turn.end.seq < after_seq:
        return None
    for entry in turn.entries:
        if screen_in(entry) is not None:
            break
    else:
        return None  # the usual case, decided quickly
    shown = (entry for step in steps_of(turn, quarantined) for entry in step)
    screens = [screen_in(entry) for entry in shown if entry.seq > after_seq]
    return next((screen for screen in reversed(screens) if screen is not None), None)
