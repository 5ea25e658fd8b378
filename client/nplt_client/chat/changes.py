"""Translates events and stored messages into changes of a chat's display.

Each kind of change is a frozen value; every chat draws these and nothing else. A change
carries the id of its turn, call or tool call, so that drawing it twice shows it once.
`EventTranslator` keeps the text of the running calls; a `Cursor` has filtered its events, so
each piece of text continues the one before it. `ChangeQueue` joins adjacent pieces of one
text, so that drawing keeps up with a fast model. All text in a change is sanitized, except
for answers with `exact_answers`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from nplt_client.chat.approvals import ApprovalWanted, approval_wanted
from nplt_client.render.answers import (
    CAN_GO_ON,
    fallback_words,
    hidden_words,
    is_silent,
    joined,
    model_of,
    stop_words,
    tokens_of_answer,
)
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
from nplt_protocol.codes import ErrorCode
from nplt_protocol.json_text import JsonObject, JsonValue

_NAME_WIDTH = 20
_HELD = "rate_limited"
"""The code of a fault that ends a turn whose prompt is held."""


class Participant(Struct, frozen=True, kw_only=True):
    user: str
    program: str


def parse_participants(clients: JsonValue | Sequence[JsonObject]) -> tuple[Participant, ...]:
    """Parses the list of clients in an ATTACH reply or a presence event."""
    return tuple(
        Participant(
            user=safe_line(one.get("user") or "", _NAME_WIDTH),
            program=safe_line(one.get("client") or "", _NAME_WIDTH),
        )
        for one in (clients if isinstance(clients, list | tuple) else ())
        if isinstance(one, dict)
    )


def other_participants(participants: Sequence[Participant], me: Participant) -> tuple[str, ...]:
    """Lists all others: other people by name, our own other programs by the program's name,
    and the number of our other windows with this program."""
    names = [
        (one.program or "someone") if one.user == me.user else one.user
        for one in participants
        if one != me
    ]
    if (windows := participants.count(me) - 1) > 0:
        names.append(f"{windows} more {'window' if windows == 1 else 'windows'}")
    return tuple(names)


class PromptShown(Struct, frozen=True, kw_only=True):
    turn_id: str
    text: str
    message_id: str | None = None
    seq: int = 0
    is_mine: bool = True
    attachments: tuple[str, ...] = ()
    """One line per file."""
    hidden: str = ""
    """The providers from whose models the prompt is hidden; empty if there are none."""
    continues: bool = False
    """It asks the model to go on with its last answer; the answer goes on there."""

    @property
    def shown(self) -> str:
        """The text, and below it the attachments and the remark."""
        below = filter(None, (*self.attachments, self.hidden))
        return "\n".join((self.text.rstrip("\n"), *(f"[{line}]" for line in below)))


class TurnBegan(Struct, frozen=True, kw_only=True):
    turn_id: str
    model: str


TextKind: TypeAlias = Literal["answer", "reasoning"]


class TextGrew(Struct, frozen=True, kw_only=True):
    turn_id: str
    call: int
    piece: str
    kind: TextKind = "answer"


class TextReplaced(Struct, frozen=True, kw_only=True):
    """The text of a call from its beginning; it replaces the pieces that were shown."""

    turn_id: str
    call: int
    text: str
    kind: TextKind = "answer"
    is_stored: bool = True
    """Whether this is the complete, stored text. If not, more pieces follow."""


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
    state: str
    """`completed`, `interrupted` or `failed`."""
    error: str | None = None
    error_code: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    model: str = ""
    """The model that answered."""
    has_begun: bool = True
    """False for a turn that was cancelled in the queue."""
    stop: str = ""
    """Why a completed answer is not whole; empty if it is."""
    fallback: str = ""
    """Why another model answered; empty if none did."""
    cut: str = ""
    """How much of the prompt the model was shown; empty if all of it."""
    hidden: str = ""
    """The providers from whose models the answer is hidden; empty if there are none."""

    @property
    def words(self) -> str:
        """A remark about the end; empty for a completed turn with nothing to say of it."""
        if self.state == "completed":
            return " · ".join(
                filter(None, (self.cut, self.stop and f"✂ {self.stop}", self.fallback, self.hidden))
            )
        if self.state == "interrupted" and not self.has_begun:
            return "■ taken back before it began"
        if self.state == "interrupted":
            return "■ interrupted; what came is kept"
        return " · ".join(filter(None, (f"✗ {self.error or 'the turn failed'}", self.fallback)))


class ActivityChanged(Struct, frozen=True, kw_only=True):
    """The activity of the running turn, in a few words for the status line."""

    turn_id: str
    words: str
    kind: str = ""


class NoticeShown(Struct, frozen=True, kw_only=True):
    """A remark in the transcript."""

    text: str
    is_error: bool = False


class ApprovalSettled(Struct, frozen=True, kw_only=True):
    """An approval was decided, or it expired."""

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
    """The transcript differs from the conversation, which has to be read again."""

    why: str


TurnChange: TypeAlias = PromptShown | TurnBegan | TextGrew | TextReplaced | ToolShown | TurnEnded
Turns: TypeAlias = Sequence[tuple[str, list[TurnChange]]]
"""The ids of turns, each with the changes that show the turn."""
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
    """Translates stored messages, turn by turn, in the order of the prompts. A message without
    a turn (from an imported conversation) becomes a turn of its own."""
    turns: dict[str, list[TurnChange]] = {}
    calls: Counter[str] = Counter()
    for message in joined(stored):
        turn_id = word_in(message, "turn_id") or f"message-{message.get('seq')}"
        changes = turns.setdefault(turn_id, [])
        if message.get("role") == "user":
            text, seq = safe(word_in(message, "content")), number_in(message, "seq")
            files = tuple(map(attachment_words, objects_in(message.get("attachments"))))
            changes.append(
                PromptShown(
                    turn_id=turn_id,
                    text=text,
                    seq=seq,
                    attachments=files,
                    hidden=safe_line(hidden_words(message)),
                    continues=bool(message.get("continues")),
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
        yield TextReplaced(turn_id=turn_id, call=call, text=safe(reasoning), kind="reasoning")
    content = word_in(message, "content")
    text = content if is_exact else safe(content)
    if message.get("truncated"):
        text += f"\n\n*(cut here; {message.get('size')} characters in all: /export has them)*"
    yield TextReplaced(turn_id=turn_id, call=call, text=text)
    yield from _tool_changes(message, turn_id=turn_id, call=call)
    match message.get("state"):
        case "interrupted" | "failed" as state:
            yield _ended(turn_id, state, message.get("error") if state == "failed" else None)
        case "completed" if _is_last(message):
            model = safe_line(model_of(message) or "")
            yield TurnEnded(
                turn_id=turn_id,
                state="completed",
                model=model,
                stop=_stop(message.get("stop_reason"), tokens_of_answer(message)),
                fallback=safe_line(fallback_words(model, message.get("fallback_from"))),
                hidden=safe_line(hidden_words(message)),
            )
        case _:
            pass


def _is_last(message: JsonObject) -> bool:
    """Whether a complete answer ends its turn: it calls no tools but those of its client."""
    calls = [*objects_in(message.get("tool_calls"))]
    return all(call.get("by_client") for call in calls) and not message.get("rejected")


def cut_words(cut: JsonObject | None) -> str:
    if not cut or "tokens" not in cut:  # of older turns a notice tells when it happens
        return ""
    shown, tokens = number_in(cut, "shown_tokens"), number_in(cut, "tokens")
    return f"✂ your prompt was cut in the middle: {shown:,} of {tokens:,} tokens were sent"


def _stop(reason: JsonValue, tokens: int | None) -> str:
    words = stop_words(reason, tokens) if isinstance(reason, str) else ""
    return safe_line(f"{words}: /continue" if words and reason in CAN_GO_ON else words)


def _ended(turn_id: str, state: str, error: JsonValue) -> TurnEnded:
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


_OUT_OF_DATE = {
    "lagged": "some events were missed; read again",
    "rolled_back": "some messages were rolled back",
    "redacted": "a message was erased",
}
_REMARKS = {
    "cleared": "cleared: the model is shown nothing older",
    "compacted": "compacted: the model is shown older turns in less detail",
    "deleted": "this conversation was deleted",
    "shutdown": "the server is shutting down; this chat reconnects when it is back",
}


class _TextStream:
    """The streamed answer or reasoning of a call. `length` counts characters before sanitizing."""

    __slots__ = ("_pieces", "_sanitizer", "length")

    def __init__(self, *, is_exact: bool) -> None:
        self.length = 0
        self._sanitizer = None if is_exact else Sanitizer()
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def add(self, text: str) -> str:
        self.length += len(text)
        piece = self._sanitizer.feed(text).translate(LINE_ENDS) if self._sanitizer else text
        self._pieces.append(piece)
        return piece


class EventTranslator:
    """Translates events. Keeps the text of the running calls, and the names of uploaded files.

    A turn's last entry ends the turn too: a client that was disconnected when the turn ended
    is sent no TURN_FINISHED.
    """

    def __init__(
        self, started_here: Callable[[str | None], bool], *, exact_answers: bool = False
    ) -> None:
        """`exact_answers` does not sanitize answers, for a file or a pipe."""
        self._started_here = started_here
        self._is_exact = exact_answers
        self._streams: dict[tuple[str, int, TextKind], _TextStream] = {}
        self._stopped_at: dict[str, int | None] = {}
        """The tokens of the last answer of each running turn."""
        self._files: dict[str, str] = {}
        """Descriptions of uploaded files by id; a prompt has only their ids."""

    def start_over(self) -> None:
        self._streams.clear()
        self._stopped_at.clear()

    def so_far(self) -> list[Change]:
        """Returns the text of the running calls, for a display that starts over."""
        return [
            TextReplaced(turn_id=turn_id, call=call, text=stream.text, kind=kind, is_stored=False)
            for (turn_id, call, kind), stream in self._streams.items()
        ]

    def changes_of(self, event: messages.Event) -> Iterator[Change]:
        """Translates an event. The caller must exhaust the iterator."""
        match event:
            case messages.TextDelta():
                is_new = event.replay_from is None
                yield from self._grow(event.turn_id, event.call, event.text, is_new=is_new)
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
            case messages.ErrorReport(code=ErrorCode.SHUTTING_DOWN):
                pass  # a session event has said so
            case messages.ErrorReport():
                words = f"the server says: {safe_line(event.message)}"
                yield NoticeShown(text=words, is_error=True)

    def _grow(
        self, turn_id: str, call: int, text: str, *, kind: TextKind = "answer", is_new: bool = True
    ) -> Iterator[Change]:
        """Adds to a call's text. `is_new` is False when the server replays it from 0."""
        key = (turn_id, call, kind)
        if not is_new:
            self._streams.pop(key, None)
            yield TextReplaced(turn_id=turn_id, call=call, text="", kind=kind, is_stored=False)
        if key not in self._streams:
            self._streams[key] = _TextStream(is_exact=self._is_exact and kind == "answer")
        if piece := self._streams[key].add(text):
            yield TextGrew(turn_id=turn_id, call=call, piece=piece, kind=kind)

    def _think(self, event: messages.AgentThought) -> Iterator[Change]:
        match event.type:
            case "reasoning":
                yield from self._grow(
                    event.turn_id, event.call or 0, event.text or "", kind="reasoning"
                )
            case "tool_call":
                pass  # tools have their own events
            case "notice" | "cut" if event.content:
                yield NoticeShown(text=safe_line(event.content))
            case _ if event.content:
                words, kind = safe_line(event.content, 60), safe_line(event.type)
                yield ActivityChanged(turn_id=event.turn_id, words=words, kind=kind)
            case _:
                pass

    def _enter(self, event: messages.EntryAdded) -> Iterator[Change]:
        entry, turn_id = event.entry, event.turn_id or word_in(event.entry, "turn_id")
        match entry.get("role"):
            case "user" if turn_id and not is_silent(entry):
                listed = entry.get("attachments")
                files = [
                    self._files.get(str(file_id)) or attachment_words({"file_id": file_id})
                    for file_id in (listed if isinstance(listed, list) else ())
                ]
                yield PromptShown(
                    turn_id=turn_id,
                    text=safe(word_in(entry, "content")),
                    message_id=word_in(entry, "message_id") or None,
                    seq=number_in(entry, "seq"),
                    is_mine=self._started_here(turn_id),
                    attachments=tuple(files),
                    continues=bool(entry.get("continues")),
                )
            case "assistant" if turn_id:
                call = event.call or 0
                stream = self._streams.pop((turn_id, call, "answer"), None)
                length = stream.length if stream else 0
                self._stopped_at[turn_id] = tokens_of_answer(entry)
                if entry.get("truncated") and length > len(word_in(entry, "content")):
                    return  # the streamed text is longer than the truncated entry
                yield from _answer_changes(
                    entry, turn_id=turn_id, call=call, is_exact=self._is_exact
                )
            case _ if turn_id and entry.get("kind") == "tool_results":
                yield from _tool_changes(entry, turn_id=turn_id, call=event.call or 0)
            case _ if turn_id and entry.get("kind") == "fault":
                # The turn failed, or the server stopped while it ran.
                error: JsonObject = {"code": entry.get("code"), "message": entry.get("content")}
                match entry.get("state"):
                    case "interrupted" if entry.get("code") == _HELD:
                        yield _ended(turn_id, "failed", error)
                    case "interrupted":
                        yield _ended(turn_id, "interrupted", None)
                    case "failed":
                        yield _ended(turn_id, "failed", error)
                    case _:
                        pass
            case _ if entry.get("kind") == "attachment":
                self._files[word_in(entry, "file_id")] = attachment_words(entry)

    def _end(self, event: messages.TurnFinished) -> Change:
        for key in [key for key in self._streams if key[0] == event.turn_id]:
            del self._streams[key]
        sent, received = tokens_of(event.usage)
        state = event.state if event.later is None else "failed"
        ended = _ended(event.turn_id, state, event.error)
        model = safe_line(event.model or "")
        tokens = self._stopped_at.pop(event.turn_id, None)
        return replace(
            ended,
            input_tokens=sent,
            output_tokens=received,
            model=model,
            stop=_stop(event.stop_reason, tokens),
            cut=cut_words(event.cut),
            fallback=safe_line(
                fallback_words(model, event.fallback_from, has_answered=event.state == "completed")
            ),
        )


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


def _of_hidden(what: str, details: JsonObject) -> str:
    """Marks the entry that models are not shown, or are shown again."""
    seq, provider = details.get("seq"), safe_line(word_in(details, "provider"))
    which = f"entry {seq}" if isinstance(seq, int) else "an entry"
    if details.get("part") == "pictures":
        which = f"the pictures of {which}"
    models = f"models of {provider}" if provider else "models"
    if what == "released":
        return f"{models} are shown {which} again"
    return f"{models} are not shown {which}, which was refused"


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
        case "quarantined" | "released" as what:
            yield NoticeShown(text=_of_hidden(what, details))
        case known if known in _REMARKS:
            yield NoticeShown(text=_REMARKS[known])
        case _:
            pass


class ChangeQueue:
    """Queues changes for a display, which takes all of them at its own pace."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._arrived = asyncio.Event()

    def add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            last = self._changes[-1] if self._changes else None
            if (
                isinstance(last, TextGrew)
                and isinstance(change, TextGrew)
                and (last.turn_id, last.call, last.kind)
                == (change.turn_id, change.call, change.kind)
            ):
                self._changes[-1] = replace(last, piece=last.piece + change.piece)
            else:
                self._changes.append(change)
            self._arrived.set()

    def clear(self) -> None:
        """Drops the changes of a conversation that was left."""
        self._changes.clear()

    async def wait(self) -> None:
        await self._arrived.wait()

    def take(self) -> list[Change]:
        self._arrived.clear()
        taken, self._changes = self._changes, []
        return taken
