"""Presents replies and events to version 2 clients, as text.

A chat is AGENT_THOUGHTs, `stream_start`, non-blank pieces of text, an empty frame;
everything else is exactly one non-blank text. Answers keep the order of the requests. A
client gets events of its own turns only. Control characters and markup are removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic

import anyio

from nplt_protocol import (
    FRAME_PAYLOAD_BYTES_MAX,
    JsonObject,
    MessageType,
    Received,
    RequestError,
    ServerConnection,
    dump_json,
    messages,
)
from nplt_protocol.stream import FrameStream
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.dialects import Presenter, too_silent
from nplt_server.settings import Limits

# They print one-frame replies as Rich markup: `[abc]` vanishes and an unmatched `[/x]` kills
# them. No `[` followed by a letter, `#`, `/` or `@` may reach them there: in prose it gets a
# space behind it, in JSON it is written `\u005b` inside strings and with a space behind it
# elsewhere. Characters that command a terminal become spaces; line ends and tabs stay.

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_TAG = re.compile(r"\[(?=[^\W\d_]|[#/@])")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|\[')


def sanitized(text: str) -> str:
    return without_markup(_CONTROLS.sub(" ", text))


def without_markup(text: str) -> str:
    return _TAG.sub("[ ", text)


def json_without_markup(document: str) -> str:
    """The same JSON value, written without a bracket that could be a tag."""

    def escape(match: re.Match[str]) -> str:
        token = match.group()
        return "[ " if token == "[" else token.replace("[", "\\u005b")

    return _STRING_OR_BRACKET.sub(escape, document)


_HEARTBEAT = "HEARTBEAT"
_PIECE_CHARACTERS_MAX = FRAME_PAYLOAD_BYTES_MAX // 4
"""A character takes at most four bytes."""


class PieceCutter:
    """Cuts an answer into pieces a version 2 client can take.

    A blank piece means "end" to it, so white space alone waits for its neighbour;
    `HEARTBEAT` alone means "I am alive", so it is never a piece by itself. White space that
    ends an answer is not sent.
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
                # A screenful of white space is still only white space.
                self._blank = piece if not text else ""
            elif piece == _HEARTBEAT:
                pieces += [piece[:5], piece[5:]]
            else:
                pieces.append(piece)
        return pieces


def fit_frame(text: str) -> str:
    """The text, or as much of it as one frame holds."""
    if len(text) <= _PIECE_CHARACTERS_MAX:
        return text
    data = text.encode()
    if len(data) <= FRAME_PAYLOAD_BYTES_MAX:
        return text
    return data[: FRAME_PAYLOAD_BYTES_MAX - 3].decode(errors="ignore") + "…"


def reply_text(reply: messages.Reply) -> str:
    """One readable text, for clients that show nothing else."""
    match reply:
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
"""Not waited for: they have no answer, or it comes after later frames."""


HELD_SECONDS = 1.0
"""How long the first words of a call wait for the tools it may ask for: after `stream_start`
nothing can be told of a tool."""
_CALLS_APART = "\n\n"


class PlainPresenter(Presenter):
    """Answers one request after the other: the next is taken up once the last has its answer."""

    __slots__ = ("_chat", "_settled", "_waiting", "clock")

    has_handshake = False
    can_decide = False
    answer_bytes_max = FRAME_PAYLOAD_BYTES_MAX

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

    def answer(self, message_type: MessageType, seq: int, reply: messages.Reply) -> None:
        if isinstance(reply, messages.Receipt):
            self._chat = _Chat(self, reply.turn_id)
            return
        self.send_text(sanitized(reply_text(reply)))
        if not isinstance(reply, messages.FileStored):
            self._answered()

    def refuse(self, message_type: int, seq: int, error: RequestError) -> None:
        if message_type == MessageType.CHAT_TEXT:
            chat = self._chat or _Chat(self, "")
            chat.end(f"({error.message})")
            self._end_chat()
            return
        self.send_text(sanitized(f"Error: {error.message}"))
        if message_type not in _SILENT:
            self._answered()

    def send_event(self, event: BroadcastEvent) -> bool:
        if self._chat is not None and self._chat.send(event.event):
            self._end_chat()
        return True

    def replay(self, frames: bytes) -> None:
        """It hears of its own turns only, from their beginning."""

    def lagged(self, session_id: str, head_seq: int) -> None:
        """Never: its own answers are not events it could catch up on."""

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
        self._answered()

    def _answered(self) -> None:
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
    """One chat on its way to the client: opened once, ended exactly once.

    Thoughts come before `stream_start`, text after it, so the first words of a call are
    held for a moment: if the call asks for tools, these are told first. Once text streams,
    a tool call shows only as a blank line between the texts before and after it.
    """

    def __init__(self, presenter: PlainPresenter, turn_id: str) -> None:
        self._presenter = presenter
        self._turn_id = turn_id
        self._cutter = PieceCutter()
        self._is_streaming = False
        self._held = ""
        self._held_since: float | None = None
        self._call = 0
        """Of the text that came last."""

    def send(self, event: messages.Event) -> bool:
        """True when this was the end of the chat."""
        match event:
            case messages.TurnStarted(turn_id=self._turn_id, model=model):
                self._think("thinking", f"{model} is thinking …")
            case messages.AgentThought(
                turn_id=self._turn_id, type="thinking" | "generating" as kind
            ):
                self._think(kind, event.content or "…")
            case messages.AgentThought(turn_id=self._turn_id, type="retrying"):
                self._think("thinking", event.content or "…")
            case messages.ToolStarted(turn_id=self._turn_id, tool_name=name):
                self._held_since = None  # the text of the next call is held anew
                self._think("tool_call", f"running {name} …")
            case messages.TextDelta(turn_id=self._turn_id):
                self._take_text(event)
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

    def _take_text(self, delta: messages.TextDelta) -> None:
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
            # A blank answer would be taken for the end of one that never began.
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
