"""Translates events and stored messages into changes of a chat's display. Pure.

Each kind of change is a frozen value; every chat draws from these and from nothing else.
Changes name what they are about (a turn, a call, a tool call), so that drawing one twice
shows it once. `EventTranslator` remembers how much of each call's text it has passed on:
a piece that comes twice counts once (offsets tell), and stored text replaces streamed
text. `ChangeQueue` joins neighbouring pieces of one text, so that drawing never falls
behind however fast a model speaks. All text in a change is safe to show, except for
answers when `exact_answers` asks for them as they are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from nplt_client.chat.approvals import ApprovalWanted, approval_wanted
from nplt_client.received_turn import model_of
from nplt_client.render.text import (
    LINE_ENDS,
    Sanitizer,
    attachment_words,
    number_in,
    objects_in,
    safe,
    safe_json,
    safe_line,
    word_in,
)
from nplt_protocol import messages
from nplt_protocol.json_text import JsonObject, JsonValue

_NAME_WIDTH = 20


class Participant(Struct, frozen=True, kw_only=True):
    user: str
    program: str


def parse_participants(clients: JsonValue | Sequence[JsonObject]) -> tuple[Participant, ...]:
    """As an ATTACH or a presence event lists them."""
    listed = clients if isinstance(clients, list | tuple) else ()
    return tuple(
        Participant(
            user=safe_line(one.get("user") or "", _NAME_WIDTH),
            program=safe_line(one.get("client") or "", _NAME_WIDTH),
        )
        for one in listed
        if isinstance(one, dict)
    )


def other_participants(participants: Sequence[Participant], me: Participant) -> tuple[str, ...]:
    """Everyone but ourselves: other people by name, our own other programs by theirs, and
    how many more windows of this one there are."""
    left = list(participants)
    if me in left:
        left.remove(me)
    windows = left.count(me)
    names = tuple(
        (participant.program or "someone") if participant.user == me.user else participant.user
        for participant in left
        if participant != me
    )
    if not windows:
        return names
    return (*names, f"{windows} more {'window' if windows == 1 else 'windows'}")


class PromptShown(Struct, frozen=True, kw_only=True):
    turn_id: str
    text: str
    message_id: str | None = None
    seq: int = 0
    is_mine: bool = True
    attachments: tuple[str, ...] = ()
    """Each file in one line."""

    @property
    def shown(self) -> str:
        """The text, and below it the files that came with it."""
        return "\n".join((self.text.rstrip("\n"), *(f"[{file}]" for file in self.attachments)))


class TurnBegan(Struct, frozen=True, kw_only=True):
    turn_id: str
    model: str


class TextGrew(Struct, frozen=True, kw_only=True):
    turn_id: str
    call: int
    piece: str


class TextStored(Struct, frozen=True, kw_only=True):
    """The text of that call as it is stored; it replaces what came piece by piece."""

    turn_id: str
    call: int
    text: str
    is_whole: bool = True
    """Not when a piece was sent again from an earlier place: more follows."""


class ReasoningGrew(Struct, frozen=True, kw_only=True):
    turn_id: str
    call: int
    piece: str


class ReasoningStored(Struct, frozen=True, kw_only=True):
    turn_id: str
    call: int
    text: str


class ToolShown(Struct, frozen=True, kw_only=True):
    """A tool call, from its beginning (`pending`) to its result."""

    turn_id: str
    call: int
    tool_call_id: str
    name: str
    arguments: str | None = None
    status: str = "pending"
    seconds: float | None = None
    result: str = ""


class TurnEnded(Struct, frozen=True, kw_only=True):
    turn_id: str
    state: Literal["completed", "interrupted", "failed"]
    error: str | None = None
    error_code: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    model: str = ""
    """The model that answered."""
    has_begun: bool = True
    """Not when it was cancelled while it waited for its turn."""

    @property
    def words(self) -> str:
        """Empty: it is complete."""
        if self.state == "completed":
            return ""
        if self.state == "interrupted" and not self.has_begun:
            return "■ taken back before it began"
        if self.state == "interrupted":
            return "■ interrupted; what came is kept"
        return f"✗ {self.error or 'the turn failed'}"


class ActivityChanged(Struct, frozen=True, kw_only=True):
    """What the running turn does, in a few words for the status line."""

    turn_id: str
    words: str
    kind: str = ""


class NoticeShown(Struct, frozen=True, kw_only=True):
    """A remark in the transcript."""

    text: str
    is_error: bool = False


class ApprovalSettled(Struct, frozen=True, kw_only=True):
    """Somebody decided, or its time is over."""

    approval_id: str
    tool_name: str = ""
    decision: str = ""
    decided_by: str = ""

    @property
    def words(self) -> str:
        if not self.decided_by:
            return f"{self.tool_name}: decided elsewhere, or too late"
        return f"{self.tool_name}: {self.decided_by} decided: {self.decision}"


class Renamed(Struct, frozen=True, kw_only=True):
    name: str


class ModelChanged(Struct, frozen=True, kw_only=True):
    model: str


class PresenceChanged(Struct, frozen=True, kw_only=True):
    participants: tuple[Participant, ...]


class TranscriptOutdated(Struct, frozen=True, kw_only=True):
    """What is shown is no longer the conversation: it has to be read again."""

    why: str


TurnChange: TypeAlias = (
    PromptShown
    | TurnBegan
    | TextGrew
    | TextStored
    | ReasoningGrew
    | ReasoningStored
    | ToolShown
    | TurnEnded
)
Turns: TypeAlias = Sequence[tuple[str, list[TurnChange]]]
"""Ids of turns, each with the changes that show it."""
Change: TypeAlias = (
    TurnChange
    | ActivityChanged
    | NoticeShown
    | ApprovalWanted
    | ApprovalSettled
    | Renamed
    | ModelChanged
    | PresenceChanged
    | TranscriptOutdated
)


def changes_from_history(stored: Iterable[JsonObject]) -> Turns:
    """Turn by turn, in the order they were asked. A message without a
    turn (from an imported conversation) is a turn of its own.
    """
    turns: dict[str, list[TurnChange]] = {}
    calls: Counter[str] = Counter()
    for message in stored:
        turn_id = word_in(message, "turn_id") or f"message-{message.get('seq')}"
        changes = turns.setdefault(turn_id, [])
        if message.get("role") == "user":
            text = safe(word_in(message, "content"))
            files = tuple(map(attachment_words, objects_in(message.get("attachments"))))
            changes.append(
                PromptShown(
                    turn_id=turn_id, text=text, seq=number_in(message, "seq"), attachments=files
                )
            )
        else:
            changes.extend(_answer_changes(message, turn_id=turn_id, call=calls[turn_id]))
            calls[turn_id] += 1
    return list(turns.items())


def _answer_changes(
    message: JsonObject, *, turn_id: str, call: int, is_exact: bool = False
) -> Iterator[TurnChange]:
    if reasoning := word_in(message, "reasoning"):
        yield ReasoningStored(turn_id=turn_id, call=call, text=safe(reasoning))
    content = word_in(message, "content")
    text = content if is_exact else safe(content)
    if message.get("truncated"):
        text += f"\n\n*(cut here; {message.get('size')} characters in all: /export has them)*"
    yield TextStored(turn_id=turn_id, call=call, text=text)
    yield from _tool_changes(message, turn_id=turn_id, call=call)
    match message.get("state"):
        case "interrupted" | "failed" as state:
            yield _ended(turn_id, state, message.get("error") if state == "failed" else None)
        case "completed" if not message.get("tool_calls") and not message.get("rejected"):
            model = safe_line(model_of(message) or "")
            yield TurnEnded(turn_id=turn_id, state="completed", model=model)
        case _:
            pass


def _ended(
    turn_id: str, state: Literal["completed", "interrupted", "failed"], error: JsonValue
) -> TurnEnded:
    details = error if isinstance(error, dict) else {}
    return TurnEnded(
        turn_id=turn_id,
        state=state,
        error=safe_line(word_in(details, "message")) or None,
        error_code=safe_line(word_in(details, "code")) or None,
    )


def _tool_changes(message: JsonObject, *, turn_id: str, call: int) -> Iterator[TurnChange]:
    for tool in objects_in(message.get("tool_calls")):
        seconds = tool.get("duration")
        pending = tool.get("status") == "pending"
        yield ToolShown(
            turn_id=turn_id,
            call=call,
            tool_call_id=word_in(tool, "tool_call_id"),
            name=safe_line(word_in(tool, "tool_name")),
            arguments=safe_json(tool["arguments"]) if tool.get("arguments") else None,
            status=safe_line(word_in(tool, "status")),
            seconds=float(seconds) if isinstance(seconds, int | float) and not pending else None,
            result=safe(word_in(tool, "result")),
        )


def tokens_of(usage: JsonObject) -> tuple[int, int]:
    return number_in(usage, "input_tokens"), number_in(usage, "output_tokens")


_SHOWN_BY_OTHER_EVENTS = frozenset({"tool_call"})

_OUT_OF_DATE = {
    "lagged": "some events were missed; read again",
    "rolled_back": "some messages were rolled back",
    "redacted": "a message was erased",
}
_REMARKS = {
    "cleared": "cleared: the model is shown nothing older",
    "compacted": "compacted: the model is shown older turns in less detail",
    "deleted": "this conversation was deleted",
    "quarantined": "an entry was quarantined: models are not shown it",
    "released": "an entry is no longer quarantined: models are shown it again",
    "shutdown": "the server is shutting down",
}


class _TextStream:
    """One call's text, or its reasoning, as it comes. `length` counts as offsets do."""

    __slots__ = ("_pieces", "_sanitizer", "length")

    def __init__(self, *, is_exact: bool = False) -> None:
        self.length = 0
        self._sanitizer = None if is_exact else Sanitizer()
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def add(self, text: str, offset: int | None) -> str:
        start = self.length if offset is None else offset
        new = text[max(0, self.length - start) :]
        self.length = max(self.length, start + len(text))
        piece = self._sanitizer.feed(new).translate(LINE_ENDS) if self._sanitizer else new
        self._pieces.append(piece)
        return piece


class EventTranslator:
    """Its only state is the text of the calls that run.

    A turn's last entry ends it too: a client that was away when the turn ended gets no
    other event.
    """

    def __init__(
        self, started_here: Callable[[str | None], bool], *, exact_answers: bool = False
    ) -> None:
        """`exact_answers`: for a file or a pipe, which gets answers as they are."""
        self._started_here = started_here
        self._is_exact = exact_answers
        self._texts: dict[tuple[str, int], _TextStream] = {}
        self._reasoning: dict[tuple[str, int], _TextStream] = {}
        self._files: dict[str, str] = {}
        """What is known of uploads, by id: a prompt has only their ids."""

    def start_over(self) -> None:
        self._texts.clear()
        self._reasoning.clear()

    def so_far(self) -> list[Change]:
        """The text of the running calls, for a display that starts over."""
        return [
            *(
                ReasoningStored(turn_id=turn_id, call=call, text=stream.text)
                for (turn_id, call), stream in self._reasoning.items()
            ),
            *(
                TextStored(turn_id=turn_id, call=call, text=stream.text, is_whole=False)
                for (turn_id, call), stream in self._texts.items()
            ),
        ]

    def changes_of(self, event: messages.Event) -> list[Change]:
        return list(self._changes_of(event))

    def _changes_of(self, event: messages.Event) -> Iterator[Change]:
        match event:
            case messages.TextDelta():
                yield from self._grow(event)
            case messages.AgentThought():
                yield from self._think(event)
            case messages.TurnStarted():
                yield TurnBegan(turn_id=event.turn_id, model=safe_line(event.model))
            case messages.EntryAdded():
                yield from self._enter(event)
            case messages.ToolStarted() | messages.ToolFinished():
                yield _tool(event)
            case messages.TurnFinished():
                yield self._end(event)
            case messages.ApprovalRequest():
                yield approval_wanted(event, is_mine=self._started_here(event.turn_id))
            case messages.SessionEvent():
                yield from _session_changes(event)
            case messages.ErrorReport():
                yield NoticeShown(
                    text=f"the server says: {safe_line(event.message)}", is_error=True
                )

    def _grow(self, event: messages.TextDelta) -> Iterator[Change]:
        key = (event.turn_id, event.call)
        if event.replay_from is not None:
            # Sent again from an earlier offset: with offset 0, all of it.
            self._texts.pop(key, None)
            yield TextStored(turn_id=event.turn_id, call=event.call, text="", is_whole=False)
        stream = self._texts.setdefault(key, _TextStream(is_exact=self._is_exact))
        if piece := stream.add(event.text, event.offset):
            yield TextGrew(turn_id=event.turn_id, call=event.call, piece=piece)

    def _think(self, event: messages.AgentThought) -> Iterator[Change]:
        if event.type == "reasoning":
            call = event.call or 0
            stream = self._reasoning.setdefault((event.turn_id, call), _TextStream())
            if piece := stream.add(event.text or "", event.offset):
                yield ReasoningGrew(turn_id=event.turn_id, call=call, piece=piece)
        elif event.content and event.type not in _SHOWN_BY_OTHER_EVENTS:
            words, kind = safe_line(event.content, 60), safe_line(event.type)
            yield ActivityChanged(turn_id=event.turn_id, words=words, kind=kind)

    def _enter(self, event: messages.EntryAdded) -> Iterator[Change]:
        entry, turn_id = event.entry, event.turn_id or word_in(event.entry, "turn_id")
        match entry.get("role"):
            case "user" if turn_id:
                listed = entry.get("attachments")
                files = listed if isinstance(listed, list) else ()
                yield PromptShown(
                    turn_id=turn_id,
                    text=safe(word_in(entry, "content")),
                    message_id=word_in(entry, "message_id") or None,
                    seq=number_in(entry, "seq"),
                    is_mine=self._started_here(turn_id),
                    attachments=tuple(
                        self._files.get(str(file_id)) or attachment_words({"file_id": file_id})
                        for file_id in files
                    ),
                )
            case "assistant" if turn_id:
                call = event.call or 0
                stream = self._texts.pop((turn_id, call), None)
                length = stream.length if stream else 0
                if entry.get("truncated") and length > len(word_in(entry, "content")):
                    return  # what was streamed is more than what fits a message
                yield from _answer_changes(
                    entry, turn_id=turn_id, call=call, is_exact=self._is_exact
                )
            case _ if turn_id and entry.get("kind") == "tool_results":
                yield from _tool_changes(entry, turn_id=turn_id, call=event.call or 0)
            case _ if turn_id and entry.get("kind") == "fault":
                # How a turn failed, or was cut short by the end of the server.
                error: JsonObject = {"code": entry.get("code"), "message": entry.get("content")}
                match entry.get("state"):
                    case "interrupted":
                        yield _ended(turn_id, "interrupted", None)
                    case "failed":
                        yield _ended(turn_id, "failed", error)
                    case _:
                        pass
            case _ if entry.get("kind") == "attachment":
                self._files[word_in(entry, "file_id")] = attachment_words(entry)

    def _end(self, event: messages.TurnFinished) -> Change:
        for streams in (self._texts, self._reasoning):
            for key in [key for key in streams if key[0] == event.turn_id]:
                del streams[key]
        sent, received = tokens_of(event.usage)
        ended = _ended(event.turn_id, event.state, event.error)
        model = safe_line(event.model or "")
        return replace(ended, input_tokens=sent, output_tokens=received, model=model)


def _tool(event: messages.ToolStarted | messages.ToolFinished) -> Change:
    shown = ToolShown(
        turn_id=event.turn_id,
        call=event.call,
        tool_call_id=event.tool_call_id,
        name=safe_line(event.tool_name),
    )
    if isinstance(event, messages.ToolStarted):
        return replace(shown, arguments=safe_json(event.arguments))
    status, result = safe_line(event.status), safe(event.result)
    return replace(shown, status=status, seconds=event.duration, result=result)


def _session_changes(event: messages.SessionEvent) -> Iterator[Change]:
    details = event.details
    match event.event:
        case "renamed":
            yield Renamed(name=safe_line(word_in(details, "name")))
        case "model":
            yield ModelChanged(model=safe_line(word_in(details, "model")))
        case "presence":
            yield PresenceChanged(participants=parse_participants(details.get("clients")))
        case "approval":
            yield ApprovalSettled(
                approval_id=word_in(details, "approval_id"),
                decision=safe_line(word_in(details, "decision")),
                decided_by=safe_line(word_in(details, "decided_by")),
            )
        case stale if stale in _OUT_OF_DATE:
            yield TranscriptOutdated(why=_OUT_OF_DATE[stale])
        case known if known in _REMARKS:
            yield NoticeShown(text=_REMARKS[known])
        case _:
            pass


class PrintedText:
    """One text where what was printed can't be taken back: gives only what is new.

    After a lost connection a text may come again from its beginning, and at the end it
    comes whole, as it is stored.
    """

    def __init__(self) -> None:
        self._printed: list[str] = []
        self._again: str | None = None
        """What came since the text began again; `None`: all that comes is new."""

    @property
    def text(self) -> str:
        return "".join(self._printed)

    def grow(self, piece: str) -> str:
        if self._again is None:
            self._printed.append(piece)
            return piece
        self._again += piece
        return self._print_rest(self._again)

    def begin_again(self, text: str) -> str:
        self._again = text
        return self._print_rest(text)

    def store(self, text: str) -> str | None:
        """`None`: it is stored differently; from now on the stored text counts."""
        known = self.text
        if known and not text.startswith(known) and text.strip() != known.strip():
            self._printed, self._again = [text], None
            return None
        return self._print_rest(text)

    def _print_rest(self, text: str) -> str:
        known = self.text
        if len(text) < len(known) or not text.startswith(known):
            return ""
        self._again = None
        new = text[len(known) :]
        self._printed.append(new)
        return new


class ChangeQueue:
    """Changes on their way to a display, which takes all of them at its own pace."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._arrived = asyncio.Event()

    def add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            last = self._changes[-1] if self._changes else None
            if last is not None and (joined := _join(last, change)):
                self._changes[-1] = joined
            else:
                self._changes.append(change)
            self._arrived.set()

    def clear(self) -> None:
        """What is in it belongs to a conversation that was left."""
        self._changes.clear()

    async def wait(self) -> None:
        """Until there is something."""
        await self._arrived.wait()

    def take(self) -> list[Change]:
        """All there is."""
        self._arrived.clear()
        taken, self._changes = self._changes, []
        return taken


def _join(last: Change, change: Change) -> Change | None:
    if not isinstance(last, TextGrew | ReasoningGrew):
        return None
    if not isinstance(change, TextGrew | ReasoningGrew):
        return None
    is_one = (type(last), last.turn_id, last.call) == (type(change), change.turn_id, change.call)
    return replace(last, piece=last.piece + change.piece) if is_one else None
