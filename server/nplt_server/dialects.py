"""The two dialects of the wire, behind one port.

A `Presenter` sends replies and events to one client: `Presenter` itself to a client of version 3,
`PlainPresenter` to one of version 2, as text. No other part of the server knows that there are two
dialects.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import anyio
from msgspec.structs import replace

from nplt_protocol import (
    FRAME_PAYLOAD_BYTES_MAX,
    Dialect,
    JsonObject,
    MessageType,
    Received,
    RequestError,
    ServerConnection,
    dump_json,
    encode_event,
    messages,
)
from nplt_protocol.messages import Reply, SessionEvent
from nplt_protocol.stream import FrameStream
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.settings import Limits

NO_TOKEN = (
    "This server needs a token, and version 2 of the protocol can't send one. "
    "Use a client of version 3, such as nplt."
)


class Presenter:
    """Sends replies and events to one client of version 3, as typed JSON. A reply carries the seq
    of its request; event frames are encoded once for all clients."""

    __slots__ = ("_connection", "_stream")

    has_handshake = True
    """Whether this client sends HELLO, and with it a token."""
    can_decide = True
    """Whether this client can decide approvals of tool calls."""
    reply_bytes_max: int | None = None

    def __init__(self, connection: ServerConnection, stream: FrameStream[Received]) -> None:
        self._connection = connection
        self._stream = stream

    def number(self, seq: int) -> int:
        """Returns the seq of the reply; 0 in a dialect whose replies have none."""
        return seq

    def reply(self, message_type: MessageType, seq: int, reply: Reply) -> None:
        self._stream.send(self._connection.send_reply(message_type, seq, reply))

    def refuse(self, message_type: int, seq: int, error: RequestError) -> None:
        self._stream.send(self._connection.send_error(seq, error))

    def send_event(self, event: BroadcastEvent) -> bool:
        """Returns False if the client lags too far behind; the event is not sent then."""
        return self._stream.send_event(event.frames)

    def replay(self, frames: bytes) -> None:
        """Sends the events that the client missed in the conversation it attaches to."""
        self._stream.send(frames)

    def lagged(self, session_id: str, head_seq: int, *, watch: bool = False) -> None:
        """Sends `lagged`: the client is no longer subscribed and must catch up. With `watch` it no
        longer watches the rows of conversations."""
        self._stream.send(encode_event(lagged_event(session_id, head_seq, watch=watch)))

    @property
    def is_ready(self) -> bool:
        """Whether the next request may be handled. Always in this dialect: replies may overtake
        each other."""
        return True

    async def ready(self) -> None:
        pass

    def expect(self, message_type: int) -> None:
        """Notes that a request of this type is being handled and will get a reply."""

    def check_silence(self, silence: float, unsent: float, limits: Limits) -> str | None:
        """Sends a heartbeat if one is due, or returns the reason to close the connection. The
        client has sent nothing for `silence` seconds and was sent nothing for `unsent` seconds. In
        this dialect it may stay silent as long as it likes, unless it names a `keepalive`."""

    def last_words(self, error: RequestError) -> None:
        """Sends the reason before the server closes the connection."""
        self._stream.send(self._connection.send_error(0, error))


def lagged_event(session_id: str, head_seq: int, *, watch: bool) -> SessionEvent:
    details: JsonObject = {"watch": True} if watch else {"head_seq": head_seq}
    return SessionEvent(session_id=session_id, event="lagged", details=details)


BRACKET_BYTES_MAX = 6
"""The size of a `[` in a JSON reply: the plain dialect escapes it as `\\u005b` in strings."""


@dataclass(slots=True, eq=False, repr=False)
class PendingReply:
    """The handle for the one reply of a request, sent now or later."""

    _presenter: Presenter
    _message_type: MessageType
    seq: int
    _settled: Callable[[], None]
    _given: bool = False

    @property
    def bytes_max(self) -> int | None:
        """The largest size of the reply, if the client's dialect limits it."""
        return self._presenter.reply_bytes_max

    def report(self, error: RequestError) -> None:
        """Sends an error about a message that gets no reply of its own."""
        self._presenter.refuse(self._message_type, 0, error)

    def send(self, reply: Reply) -> None:
        if not self._given:
            # If the reply can't be sent this raises, and the request may still be refused.
            self._presenter.reply(self._message_type, self.seq, reply)
            self._given = True
            self._settled()

    def refuse(self, error: RequestError) -> None:
        if not self._given:
            self._presenter.refuse(self._message_type, self.seq, error)
            self._given = True
            self._settled()


# Version 2
#
# The reply to a chat text is AGENT_THOUGHTs, `stream_start`, non-blank pieces of text, and an empty
# frame; any other reply is exactly one non-blank text. Replies keep the order of the requests. A
# client gets events of its own turns only. Control characters and markup are removed.
#
# Clients of version 2 print one-frame replies as Rich markup: `[abc]` vanishes, and an unmatched
# `[/x]` crashes them. So no `[` followed by a letter, `#`, `/` or `@` may reach them: in prose a
# space is inserted after it, in JSON it is escaped as `\u005b` inside strings and gets a space
# elsewhere. Terminal control characters become spaces; line ends and tabs stay.

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_TAG = re.compile(r"\[(?=[^\W\d_]|[#/@])")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|\[')


def sanitized(text: str) -> str:
    return without_markup(_CONTROLS.sub(" ", text))


def without_markup(text: str) -> str:
    return _TAG.sub("[ ", text)


def json_without_markup(document: str) -> str:
    """Rewrites a JSON document without brackets that could be a tag; the value stays the same."""

    def escape(match: re.Match[str]) -> str:
        token = match.group()
        return "[ " if token == "[" else token.replace("[", "\\u005b")

    return _STRING_OR_BRACKET.sub(escape, document)


_HEARTBEAT = "HEARTBEAT"
_PIECE_CHARACTERS_MAX = FRAME_PAYLOAD_BYTES_MAX // 4
"""A character takes at most four bytes."""


class PieceCutter:
    """Cuts an answer into pieces that a version 2 client can handle.

    The client takes a blank piece for the end, so white space is held until text follows. It takes
    `HEARTBEAT` alone for a heartbeat, so that is never a piece by itself. White space at the end
    of an answer is not sent.
    """

    def __init__(self) -> None:
        self._blank = ""

    def feed(self, text: str) -> list[str]:
        text = self._blank + text
        self._blank = ""
        pieces: list[str] = []
        while text:
            piece, text = text[:_PIECE_CHARACTERS_MAX], text[_PIECE_CHARACTERS_MAX:]
            if not piece.strip():
                # A whole piece of white space is dropped.
                self._blank = piece if not text else ""
            elif piece == _HEARTBEAT:
                pieces += [piece[:5], piece[5:]]
            else:
                pieces.append(piece)
        return pieces


def fit_frame(text: str) -> str:
    """Shortens a text to what one frame holds."""
    if len(text) <= _PIECE_CHARACTERS_MAX:
        return text
    data = text.encode()
    if len(data) <= FRAME_PAYLOAD_BYTES_MAX:
        return text
    return data[: FRAME_PAYLOAD_BYTES_MAX - 3].decode(errors="ignore") + "…"


def _since_clear(page: messages.HistoryPage) -> messages.HistoryPage:
    """The page without the cleared messages, for clients that take all of it for the history."""
    kept = tuple(each for each in page.messages if "cleared" not in each)
    first = kept[0].get("seq") if kept else None
    before = first if isinstance(first, int) else page.page.after
    edges = replace(page.page, has_more_before=False, before=before)
    return replace(page, messages=kept, page=edges)


def reply_text(reply: Reply) -> str:
    """Returns the reply as one readable text, for clients that show nothing else."""
    match reply:
        case messages.HistoryPage() if any("cleared" in each for each in reply.messages):
            return reply_text(_since_clear(reply))
        case messages.HistoryPage() | messages.MessageRange() | messages.ContextAccount():
            return json_without_markup(dump_json(reply).decode())
        case messages.SessionRows():
            return _list(reply)
        case messages.Attached():
            return f"Switched to {reply.name} ({reply.session_id}), {reply.model}."
        case messages.SessionCreated():
            return f"Began {reply.name} ({reply.session_id})."
        case messages.SessionDeleted():
            return f"Deleted {reply.session_id}. You are in {reply.current_session_id} now."
        case messages.ModelChoice(model=model, previous_model=before):
            changed = "" if model == before else f" now (it was {before})"
            return f"The model is {model}{changed}. There is: {', '.join(reply.models)}."
        case messages.Cleared():
            return "Cleared: the model no longer sees what was said before. The record stays."
        case messages.FileStored():
            return f"Stored {reply.size} bytes as {reply.file_id}."
        case _:
            return dump_json(reply).decode()


def _list(rows: messages.SessionRows) -> str:
    partly = "The server still reads its files; the list is not complete yet."
    if not rows.sessions:
        none = "No conversations yet. Say something to begin one."
        return partly if rows.incomplete else none
    lines = [f"Conversations, newest first ({len(rows.sessions)}):"]
    for row in rows.sessions:
        count = f"{row.message_count} message{'s' if row.message_count != 1 else ''}"
        facts = [count, row.updated_at[:16].replace("T", " ")]
        if row.state != "idle":
            facts.append(row.state)
        if row.deleted_at:
            facts.append(f"deleted {row.deleted_at[:16].replace('T', ' ')}")
        if row.damaged:
            facts.append("damaged")
        mark = "*" if row.is_current else " "
        lines.append(f"{mark} {row.session_id}  {row.name}  ({', '.join(facts)})")
        if row.repair:
            lines.append(f"    to repair it: {row.repair}")
        if row.warning:
            lines.append(f"    {row.warning}")
    if rows.next_cursor:
        lines.append("There are more; ask with a larger limit or a query.")
    if rows.incomplete:
        lines.append(partly)
    return "\n".join(lines)


_SILENT = frozenset({MessageType.CLIENT_NOTE, MessageType.FILE_METADATA, MessageType.FILE_DATA})
"""Requests that the next one does not wait for: they have no reply, or it follows later frames."""


HELD_SECONDS = 1.0
"""How long the first text of a call is held back in case the call uses tools: no tool can be shown
after `stream_start`."""
_CALLS_APART = "\n\n"


class PlainPresenter(Presenter):
    """Sends replies to a client of version 2, in order: the next request is handled only after the
    last one has its reply."""

    __slots__ = ("_chat", "_settled", "_waiting", "clock")

    has_handshake = False
    can_decide = False
    reply_bytes_max = FRAME_PAYLOAD_BYTES_MAX

    def __init__(
        self,
        connection: ServerConnection,
        stream: FrameStream[Received],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(connection, stream)
        self.clock = clock
        self._chat: _Chat | None = None
        self._waiting = 0
        self._settled = anyio.Event()

    def number(self, seq: int) -> int:
        return 0

    def expect(self, message_type: int) -> None:
        if message_type not in _SILENT:
            self._waiting += 1

    @property
    def is_ready(self) -> bool:
        return self._waiting == 0

    async def ready(self) -> None:
        while self._waiting:
            await self._settled.wait()

    def reply(self, message_type: MessageType, seq: int, reply: Reply) -> None:
        if isinstance(reply, messages.Receipt):
            self._chat = _Chat(self, reply.turn_id)
            return
        self.send_text(sanitized(reply_text(reply)))
        if not isinstance(reply, messages.FileStored):
            self._mark_replied()

    def refuse(self, message_type: int, seq: int, error: RequestError) -> None:
        if message_type == MessageType.CHAT_TEXT:
            chat = self._chat or _Chat(self, "")
            chat.end(f"({error.message})")
            self._end_chat()
            return
        self.send_text(sanitized(f"Error: {error.message}"))
        if message_type not in _SILENT:
            self._mark_replied()

    def send_event(self, event: BroadcastEvent) -> bool:
        if self._chat is not None and self._chat.send(event.event):
            self._end_chat()
        return True

    def replay(self, frames: bytes) -> None:
        """Does nothing: the client gets events of its own turns only, from their beginning."""

    def lagged(self, session_id: str, head_seq: int, *, watch: bool = False) -> None:
        """Does nothing: the client could not catch up on missed events."""

    def last_words(self, error: RequestError) -> None:
        if self._chat is not None:
            self._chat.end(f"({error.message})")
            self._end_chat()
        else:
            self.send_text(sanitized(error.message))

    def check_silence(self, silence: float, unsent: float, limits: Limits) -> str | None:
        reason = too_silent(silence, limits)
        if reason is None and unsent > limits.plain_heartbeat_seconds:
            self.send_text(_HEARTBEAT)
        return reason

    def _end_chat(self) -> None:
        self._chat = None
        self._mark_replied()

    def _mark_replied(self) -> None:
        self._waiting = max(0, self._waiting - 1)
        if not self._waiting:
            self._settled.set()
            self._settled = anyio.Event()

    def send_text(self, text: str) -> None:
        self._stream.send(self._connection.send_text(fit_frame(text)))

    def send_thought(self, kind: str, content: str | None = None) -> None:
        thought: JsonObject = {"type": kind}
        if content is not None:
            thought["content"] = without_markup(content)
        self._stream.send(self._connection.send_thought(thought))


class _Chat:
    """The stream of one answer to the client: started once, ended exactly once.

    Thoughts come before `stream_start`, text after it, so the first text of a call is held for a
    moment: if the call uses tools, these are shown first. Once text streams, a tool call shows only
    as a blank line between the texts before and after it.
    """

    def __init__(self, presenter: PlainPresenter, turn_id: str) -> None:
        self._presenter = presenter
        self._turn_id = turn_id
        self._cutter = PieceCutter()
        self._is_streaming = False
        self._held = ""
        self._held_since: float | None = None
        self._call = 0
        """The number of the call that produced the last text."""

    def send(self, event: messages.Event) -> bool:
        """Returns True if the event ended the answer."""
        match event:
            case messages.TurnStarted(turn_id=self._turn_id, model=model):
                self._think("thinking", f"{model} is thinking …")
            case messages.AgentThought(
                turn_id=self._turn_id, type="thinking" | "generating" as kind
            ):
                self._think(kind, event.content or "…")
            case messages.AgentThought(turn_id=self._turn_id, type="retrying" | "waiting" | "cut"):
                self._think("thinking", event.content or "…")
            case messages.ToolStarted(turn_id=self._turn_id, tool_name=name):
                self._held_since = None  # the text of the next call is held again
                self._think("tool_call", f"running {name} …")
            case messages.TextDelta(turn_id=self._turn_id):
                self._add_text(event)
            case messages.TurnFinished(turn_id=self._turn_id) as finished:
                message = (finished.error or {}).get("message") or "no reason given"
                is_complete = finished.state == "completed"
                self.end(None if is_complete else f"({finished.state}: {message})")
                return True
            case _:
                pass
        return False

    def _think(self, kind: str, content: str) -> None:
        if not self._is_streaming:
            self._presenter.send_thought(kind, content)

    def _add_text(self, delta: messages.TextDelta) -> None:
        text = delta.text
        if delta.call != self._call:
            self._call = delta.call
            text = _CALLS_APART + text if self._held or self._is_streaming else text
        if self._is_streaming:
            self._stream(text)
            return
        self._held += text
        now = self._presenter.clock()
        self._held_since = now if self._held_since is None else self._held_since
        if now - self._held_since >= HELD_SECONDS:
            self._stream_held()

    def end(self, remark: str | None) -> None:
        self._stream_held()
        if remark is not None:
            self._stream(f"\n\n{remark}" if self._is_streaming else remark)
        if not self._is_streaming:
            # A client takes a blank answer for the end of one that never began.
            self._stream("(empty answer)")
        self._presenter.send_text("")

    def _stream_held(self) -> None:
        text, self._held = self._held, ""
        self._stream(text)

    def _stream(self, text: str) -> None:
        for piece in self._cutter.feed(text):
            if not self._is_streaming:
                self._is_streaming = True
                self._presenter.send_thought("stream_start")
            self._presenter.send_text(piece)


def presenter_for(connection: ServerConnection, stream: FrameStream[Received]) -> Presenter:
    """Returns the presenter of the dialect that the first frame determined."""
    if connection.dialect is Dialect.STRUCTURED:
        return Presenter(connection, stream)
    return PlainPresenter(connection, stream)


def too_silent(silence: float, limits: Limits) -> str | None:
    """Returns the reason to disconnect a silent client that is plain or has sent no frame yet."""
    if silence <= limits.plain_silence_seconds_max:
        return None
    return f"Nothing came from you for {silence:.0f} s. Connect again."
