"""Version 2: everything comes back as text, one answer after the other.

A chat is AGENT_THOUGHTs, `stream_start`, non-blank pieces of text, an empty
frame. Everything else is exactly one non-blank text. The next request is taken
up when the last one is answered, so answers keep the order of the requests and
nothing ever stands between a chat and its stream. The client hears only of its
own turns.
"""

from __future__ import annotations

import anyio

from nplt_protocol.codes import MessageType
from nplt_protocol.connection import Received
from nplt_protocol.errors import RequestError
from nplt_protocol.events import AgentThought, TextDelta, ToolStarted, TurnFinished, TurnStarted
from nplt_protocol.json_values import JsonObject
from nplt_protocol.limits import FRAME_PAYLOAD_BYTES_MAX
from nplt_protocol.replies import FileStored, Receipt, Reply
from nplt_protocol.server_connection import ServerConnection
from nplt_protocol.stream import FrameStream
from nplt_server.conversations.audience import Said
from nplt_server.presenters.markup import harmless, without_markup
from nplt_server.presenters.pieces import PieceCutter, fit_frame
from nplt_server.presenters.texts import reply_text

_SILENT = frozenset({MessageType.CLIENT_NOTE, MessageType.FILE_METADATA, MessageType.FILE_DATA})
"""Not waited for: they have no answer, or it comes after later frames."""


class PlainPresenter:
    __slots__ = ("_chat", "_connection", "_settled", "_stream", "_waiting")

    numbers_requests = False
    answer_bytes_max = FRAME_PAYLOAD_BYTES_MAX

    def __init__(self, connection: ServerConnection, stream: FrameStream[Received]) -> None:
        self._connection = connection
        self._stream = stream
        self._chat: _Chat | None = None
        self._waiting = 0
        self._settled = anyio.Event()

    def expect(self, message_type: int) -> None:
        """A request was taken up that gets an answer."""
        if message_type not in _SILENT:
            self._waiting += 1

    @property
    def is_ready(self) -> bool:
        return self._waiting == 0

    async def ready(self) -> None:
        while self._waiting:
            await self._settled.wait()

    def answer(self, message_type: MessageType, seq: int, reply: Reply) -> None:
        if isinstance(reply, Receipt):
            self._chat = _Chat(self, reply.turn_id)
            return
        self._send_text(harmless(reply_text(reply)))
        if not isinstance(reply, FileStored):
            self._answered()

    def refuse(self, message_type: int, seq: int, error: RequestError) -> None:
        if message_type == MessageType.CHAT_TEXT:
            chat = self._chat or _Chat(self, "")
            chat.fail(error.message)
            self._end_chat()
            return
        self._send_text(harmless(f"Error: {error.message}"))
        if message_type not in _SILENT:
            self._answered()

    def hear(self, said: Said) -> bool:
        if self._chat is not None and self._chat.hear(said):
            self._end_chat()
        return True

    def replay(self, frames: bytes) -> None:
        """It hears of its own turns only, from their beginning."""

    def lagged(self, session_id: str, head_seq: int) -> None:
        """Never: its own answers are not events it could catch up on."""

    def last_words(self, error: RequestError) -> None:
        if self._chat is not None:
            self._chat.fail(error.message)
            self._end_chat()
        else:
            self._send_text(harmless(error.message))

    def heartbeat(self) -> None:
        self._send_text("HEARTBEAT")

    def _end_chat(self) -> None:
        self._chat = None
        self._answered()

    def _answered(self) -> None:
        self._waiting = max(0, self._waiting - 1)
        if not self._waiting:
            self._settled.set()
            self._settled = anyio.Event()

    def _send_text(self, text: str) -> None:
        self._stream.send(self._connection.send_text(fit_frame(text)))

    def _send_thought(self, kind: str, content: str | None = None) -> None:
        thought: JsonObject = {"type": kind}
        if content is not None:
            thought["content"] = without_markup(content)
        self._stream.send(self._connection.send_thought(thought))


class _Chat:
    """One chat on its way to the client: opened once, ended exactly once."""

    def __init__(self, presenter: PlainPresenter, turn_id: str) -> None:
        self._say = presenter._send_text
        self._think = presenter._send_thought
        self._turn_id = turn_id
        self._cutter = PieceCutter()
        self._is_streaming = False

    def hear(self, said: Said) -> bool:
        """True when this was the end of it."""
        match said.event:
            case TurnStarted(turn_id=self._turn_id, model=model):
                self._think("thinking", f"{model} is thinking …")
            case AgentThought(turn_id=self._turn_id, type="thinking" | "generating" as kind):
                self._think(kind, said.event.content or "…")
            case AgentThought(turn_id=self._turn_id, type="retrying"):
                self._think("thinking", said.event.content or "…")
            case ToolStarted(turn_id=self._turn_id, tool_name=name):
                self._think("tool_call", f"running {name} …")
            case TextDelta(turn_id=self._turn_id, text=text):
                self._stream(self._cutter.feed(text))
            case TurnFinished(turn_id=self._turn_id) as finished:
                if finished.state == "completed":
                    self._end(None)
                else:
                    message = (finished.error or {}).get("message")
                    self._end(f"({finished.state}: {message or 'no reason given'})")
                return True
            case _:
                pass
        return False

    def fail(self, reason: str) -> None:
        self._end(f"({reason})")

    def _end(self, remark: str | None) -> None:
        if remark is not None:
            said_before = self._is_streaming
            self._stream(self._cutter.feed(f"\n\n{remark}" if said_before else remark))
        if not self._is_streaming:
            # A blank answer would be taken for the end of one that never began.
            self._stream(self._cutter.feed("(empty answer)"))
        self._say("")

    def _stream(self, pieces: list[str]) -> None:
        for piece in pieces:
            if not self._is_streaming:
                self._is_streaming = True
                self._think("stream_start")
            self._say(piece)
