"""The client's end of a connection, in either dialect: requests to bytes,
bytes to replies and events.

The rules are told in `connection`. A server may be newer than this code:
events it doesn't know are dropped, words it doesn't know are taken. What can't
be read at all becomes an error for the one who asked, never an exception.
"""

from __future__ import annotations

from nplt_protocol.codec import decode_event, decode_reply, encode_request
from nplt_protocol.codes import MORE, ErrorCode, MessageType
from nplt_protocol.connection import (
    CLIENT_TRANSITIONS,
    ConnectionRefused,
    Cue,
    Dialect,
    ErrorReceived,
    EventReceived,
    Heard,
    ReplyReceived,
    State,
    TextReceived,
    ThoughtReceived,
)
from nplt_protocol.errors import LocalProtocolError, RequestError
from nplt_protocol.events import ErrorReport
from nplt_protocol.fragments import BrokenMessage, FragmentJoiner, encode_message
from nplt_protocol.frames import Frame, FrameDecoder, encode_frame
from nplt_protocol.json_text import load_json
from nplt_protocol.limits import FRAME_PAYLOAD_BYTES_MAX, WireLimits
from nplt_protocol.plain import HEARTBEAT, encode_plain_request
from nplt_protocol.replies import Welcome
from nplt_protocol.requests import REQUEST_TYPES, FileData, Hello, Request

_CODES = {shape: code for code, shape in REQUEST_TYPES.items()}
_SEQ_MAX = 0xFFFF
_MESSAGE_BYTES_CEILING = 64 * 1024 * 1024
"""However large a server says messages may be, more is not kept."""


class ClientConnection:
    __slots__ = (
        "_answers",
        "_deaf",
        "_decoder",
        "_joiner",
        "_limits",
        "_seq",
        "_waiting",
        "dialect",
        "greeting",
        "message_bytes_max",
        "state",
        "welcome",
    )

    def __init__(
        self,
        dialect: Dialect = Dialect.STRUCTURED,
        limits: WireLimits = WireLimits(),  # noqa: B008 (frozen)
    ) -> None:
        self.dialect = dialect
        self.state = State.PLAIN if dialect is Dialect.PLAIN else State.NEW
        self.greeting: str | None = None
        """The last text before WELCOME; if the server hangs up then, the reason."""
        self.welcome: Welcome | None = None
        self.message_bytes_max = limits.message_bytes_max
        self._limits = limits
        self._decoder = FrameDecoder(limits.frame_bytes_max)
        self._joiner = FragmentJoiner(limits.message_bytes_max)
        self._answers: list[bytes] = []
        self._waiting: dict[int, MessageType] = {}
        self._seq = 0
        self._deaf = False

    @property
    def has_partial(self) -> bool:
        return self._decoder.has_partial or self._joiner.is_open

    @property
    def unanswered(self) -> int:
        return len(self._waiting)

    # -- saying ----------------------------------------------------------------

    def send_hello(self, hello: Hello = Hello()) -> bytes:  # noqa: B008 (frozen)
        """Again after a HELLO that was refused (another token)."""
        if self.state is State.NEW:
            self._change(Cue.HELLO)
        elif (
            self.state is not State.AWAITING_WELCOME or MessageType.HELLO in self._waiting.values()
        ):
            raise LocalProtocolError(f"HELLO can't be said while {self.state.name}")
        seq = self._next_seq()
        data = encode_request(hello, seq, message_bytes_max=FRAME_PAYLOAD_BYTES_MAX)
        self._waiting[seq] = MessageType.HELLO
        return data

    def send(self, request: Request) -> tuple[int, bytes]:
        """The bytes, and the seq its reply will carry (in plain: of no meaning)."""
        if self.state is State.PLAIN:
            return self._send_plain(request)
        if self.state not in (State.AWAITING_WELCOME, State.STRUCTURED):
            raise LocalProtocolError(f"a request can't be sent while {self.state.name}")
        if isinstance(request, Hello | FileData):
            raise LocalProtocolError("send_hello and send_file_data are there for these")
        seq = self._next_seq()
        data = encode_request(request, seq, message_bytes_max=self.message_bytes_max)
        self._waiting[seq] = _CODES[type(request)]
        return seq, data

    def send_file_data(self, seq: int, data: bytes) -> bytes:
        """Pieces of the upload whose FileMetadata went out under this seq."""
        if (
            self.state is not State.PLAIN
            and self._waiting.get(seq) is not MessageType.FILE_METADATA
        ):
            raise LocalProtocolError(f"no upload #{seq} is open")
        return b"".join(
            encode_frame(MessageType.FILE_DATA, seq, data[at : at + FRAME_PAYLOAD_BYTES_MAX])
            for at in range(0, len(data), FRAME_PAYLOAD_BYTES_MAX)
        )

    def send_heartbeat(self) -> bytes:
        if self.state is not State.PLAIN:
            raise LocalProtocolError("only the plain dialect has heartbeats")
        return encode_frame(MessageType.CHAT_TEXT, self._next_plain_seq(), HEARTBEAT)

    def data_to_send(self) -> bytes:
        """Answers nobody needs to think about."""
        answers = b"".join(self._answers)
        self._answers.clear()
        return answers

    def close(self) -> None:
        self._deaf = True
        self._answers.clear()
        self._joiner.reset()
        self._decoder = FrameDecoder()
        self._change(Cue.CLOSE)

    def _send_plain(self, request: Request) -> tuple[int, bytes]:
        seq = self._next_plain_seq()
        return seq, encode_plain_request(request, seq)

    def _next_plain_seq(self) -> int:
        seq, self._seq = self._seq, (self._seq + 1) & _SEQ_MAX
        return seq

    def _next_seq(self) -> int:
        if len(self._waiting) >= _SEQ_MAX:
            raise LocalProtocolError("every seq belongs to a request that is still unanswered")
        seq = self._seq % _SEQ_MAX + 1
        while seq in self._waiting:
            seq = seq % _SEQ_MAX + 1
        self._seq = seq
        return seq

    # -- hearing ---------------------------------------------------------------

    def receive_data(self, data: bytes) -> list[Heard]:
        if self._deaf:
            return []
        heard: list[Heard] = []
        for frame in self._decoder.receive_data(data):
            if self.state is State.PLAIN:
                self._hear_plain(frame, heard)
            elif self._joiner.is_open or frame.type & MORE:
                self._hear_fragment(frame, heard)
            else:
                self._hear_message(frame, heard)
        if self._decoder.error is not None:
            self._deaf = True
            heard.append(
                ConnectionRefused(reason=f"The bytes can't be framed: {self._decoder.error}.")
            )
        return heard

    def _hear_plain(self, frame: Frame, heard: list[Heard]) -> None:
        match frame.type:
            case MessageType.CHAT_TEXT if frame.payload != HEARTBEAT:
                heard.append(TextReceived(text=frame.payload.decode(errors="replace")))
            case MessageType.AGENT_THOUGHT:
                try:
                    heard.append(ThoughtReceived(payload=load_json(frame.payload, self._limits)))
                except RequestError:
                    # Old servers also thought in bare text.
                    text = frame.payload.decode(errors="replace")
                    heard.append(ThoughtReceived(payload={"type": "thinking", "content": text}))

    def _hear_fragment(self, frame: Frame, heard: list[Heard]) -> None:
        for joined in self._joiner.receive_frame(frame):
            match joined:
                case Frame():
                    self._hear_message(joined, heard)
                case BrokenMessage(seq=seq, error=error):
                    self._unreadable(seq, error, heard)

    def _hear_message(self, message: Frame, heard: list[Heard]) -> None:
        type_, seq, payload = message
        if self.state is State.STRUCTURED:
            if type_ == MessageType.PING:
                self._answers.append(encode_message(MessageType.PONG, seq, payload))
                return
        elif type_ == MessageType.CHAT_TEXT:
            self.greeting = payload.decode(errors="replace")
            heard.append(TextReceived(text=self.greeting))
            return
        elif type_ not in (MessageType.HELLO, MessageType.ERROR):
            return
        try:
            if seq == 0:
                self._hear_event(type_, payload, heard)
            else:
                self._hear_reply(type_, seq, payload, heard)
        except RequestError as error:
            self._unreadable(seq, error, heard)

    def _hear_event(self, type_: int, payload: bytes, heard: list[Heard]) -> None:
        event = decode_event(type_, payload)
        if event is not None:
            heard.append(EventReceived(event=event))

    def _hear_reply(self, type_: int, seq: int, payload: bytes, heard: list[Heard]) -> None:
        request_type = self._waiting.get(seq)
        if request_type is None:
            return
        reply = decode_reply(request_type, type_, payload)
        del self._waiting[seq]
        if isinstance(reply, ErrorReport):
            heard.append(ErrorReceived(seq=seq, report=reply))
            return
        if isinstance(reply, Welcome):
            self._welcomed(reply)
        heard.append(ReplyReceived(seq=seq, request_type=request_type, reply=reply))

    def _welcomed(self, welcome: Welcome) -> None:
        self.welcome = welcome
        self._change(Cue.WELCOME)
        told = welcome.limits.get("message_bytes_max")
        if isinstance(told, int) and told > 0:
            self.message_bytes_max = min(told, _MESSAGE_BYTES_CEILING)
            self._joiner.message_bytes_max = self.message_bytes_max

    def _unreadable(self, seq: int, error: RequestError, heard: list[Heard]) -> None:
        report = ErrorReport(
            code=ErrorCode.MALFORMED,
            message=f"What the server sent can't be read: {error.message}",
            field=error.field,
        )
        if self._waiting.pop(seq, None) is not None:
            heard.append(ErrorReceived(seq=seq, report=report))
        else:
            heard.append(EventReceived(event=report))

    def _change(self, cue: Cue) -> None:
        self.state = CLIENT_TRANSITIONS[self.state][cue]
