"""The client's end of a connection, in either dialect: requests to bytes,
bytes to replies and events.

`connection` holds the states and the rules. A server may be newer than this
code: unknown events are dropped, unknown enum values are accepted. A reply that
can't be decoded becomes an error for its request, never an exception.
"""

from __future__ import annotations

from nplt_protocol.codec import (
    HEARTBEAT,
    REQUEST_CODES,
    decode_event,
    decode_reply,
    encode_plain_request,
    encode_request,
)
from nplt_protocol.codes import MORE, ErrorCode, MessageType
from nplt_protocol.connection import (
    CLIENT_STATES,
    Connection,
    ConnectionRefused,
    Dialect,
    ErrorReceived,
    EventReceived,
    ReceivedByClient,
    ReplyReceived,
    State,
    Step,
    TextReceived,
    ThoughtReceived,
)
from nplt_protocol.errors import LocalProtocolError, RequestError
from nplt_protocol.frames import (
    FRAME_PAYLOAD_BYTES_MAX,
    Frame,
    WireLimits,
    encode_frame,
    encode_message,
)
from nplt_protocol.messages import ErrorReport, FileData, Hello, Request, Welcome
from nplt_protocol.payloads import load_json

_BEFORE_WELCOME: dict[int, Step] = {
    MessageType.HELLO: Step.RECEIVE_WELCOME,
    MessageType.ERROR: Step.RECEIVE_ERROR,
    MessageType.CHAT_TEXT: Step.RECEIVE_TEXT,
}
"""Message types that may arrive before WELCOME. All others are replies and events."""
_SEQ_MAX = 0xFFFF
_MESSAGE_BYTES_CEILING = 64 * 1024 * 1024
"""Longer messages are refused, whatever limit the server announces."""


class ClientConnection(Connection):
    transitions = CLIENT_STATES

    __slots__ = ("_seq", "_waiting", "dialect", "greeting", "message_bytes_max", "welcome")

    def __init__(
        self,
        dialect: Dialect = Dialect.STRUCTURED,
        limits: WireLimits = WireLimits(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__(State.PLAIN if dialect is Dialect.PLAIN else State.NEW, limits)
        self.dialect = dialect
        self.greeting: str | None = None
        """The last text before WELCOME. If the server then closes the connection, this is the
        reason."""
        self.welcome: Welcome | None = None
        self.message_bytes_max = limits.message_bytes_max
        self._waiting: dict[int, MessageType] = {}
        self._seq = 0

    @property
    def open_requests(self) -> int:
        return len(self._waiting)

    # Sending.

    def send_hello(self, hello: Hello = Hello()) -> bytes:  # noqa: B008 (frozen)
        """Sends HELLO, also after a refused one, with another token."""
        if MessageType.HELLO in self._waiting.values():
            raise LocalProtocolError("HELLO can't be sent while another has no reply yet")
        self.state = self.after(Step.SEND_HELLO)
        seq = self._next_seq()
        data = encode_request(hello, seq, message_bytes_max=FRAME_PAYLOAD_BYTES_MAX)
        self._waiting[seq] = MessageType.HELLO
        return data

    def send(self, request: Request) -> tuple[int, bytes]:
        """Returns the seq that the reply will carry (meaningless in plain), and the bytes."""
        if self.allows(Step.SEND_PLAIN_REQUEST):
            seq = self._next_plain_seq()
            return seq, encode_plain_request(request, seq)
        self.state = self.after(Step.SEND_REQUEST)
        if isinstance(request, Hello | FileData):
            raise LocalProtocolError("use send_hello and send_file_data for these")
        seq = self._next_seq()
        data = encode_request(request, seq, message_bytes_max=self.message_bytes_max)
        self._waiting[seq] = REQUEST_CODES[type(request)]
        return seq, data

    def send_file_data(self, seq: int, data: bytes) -> bytes:
        """Sends a piece of the upload whose FileMetadata was sent with this seq."""
        is_open = self._waiting.get(seq) is MessageType.FILE_METADATA
        if not is_open and not self.allows(Step.SEND_PLAIN_REQUEST):
            raise LocalProtocolError(f"no upload #{seq} is open")
        return b"".join(
            encode_frame(MessageType.FILE_DATA, seq, data[at : at + FRAME_PAYLOAD_BYTES_MAX])
            for at in range(0, len(data), FRAME_PAYLOAD_BYTES_MAX)
        )

    def send_heartbeat(self) -> bytes:
        self.state = self.after(Step.SEND_PLAIN_REQUEST)
        return encode_frame(MessageType.CHAT_TEXT, self._next_plain_seq(), HEARTBEAT)

    def _next_plain_seq(self) -> int:
        seq, self._seq = self._seq, (self._seq + 1) & _SEQ_MAX
        return seq

    def _next_seq(self) -> int:
        if len(self._waiting) >= _SEQ_MAX:
            raise LocalProtocolError("every seq belongs to a request that has no reply yet")
        seq = self._seq % _SEQ_MAX + 1
        while seq in self._waiting:
            seq = seq % _SEQ_MAX + 1
        self._seq = seq
        return seq

    # Receiving.

    def receive_data(self, data: bytes) -> list[ReceivedByClient]:
        if self._input_ended:
            return []
        received: list[ReceivedByClient] = []
        for frame in self._decoder.receive_data(data):
            if self.state is State.PLAIN:
                self._receive_plain(frame, received)
            elif self._joiner.is_open or frame.type & MORE:
                for joined in self._joiner.receive_frame(frame):
                    if isinstance(joined, Frame):
                        self._receive_message(joined, received)
                    else:
                        self._unreadable(joined.seq, joined.error, received)
            else:
                self._receive_message(frame, received)
        if self._decoder.error is not None:
            self._input_ended = True
            received.append(
                ConnectionRefused(reason=f"The bytes can't be framed: {self._decoder.error}.")
            )
        return received

    def _receive_plain(self, frame: Frame, received: list[ReceivedByClient]) -> None:
        match frame.type:
            case MessageType.CHAT_TEXT if frame.payload != HEARTBEAT:
                received.append(TextReceived(text=frame.payload.decode(errors="replace")))
            case MessageType.AGENT_THOUGHT:
                try:
                    received.append(ThoughtReceived(payload=load_json(frame.payload, self._limits)))
                except RequestError:
                    # Old servers also send bare text.
                    text = frame.payload.decode(errors="replace")
                    received.append(ThoughtReceived(payload={"type": "thinking", "content": text}))

    def _receive_message(self, message: Frame, received: list[ReceivedByClient]) -> None:
        type_, seq, payload = message
        allowed = CLIENT_STATES[self.state]
        if Step.RECEIVE_REPLY not in allowed and _BEFORE_WELCOME.get(type_) not in allowed:
            return
        if type_ == MessageType.PING:
            self._pongs.append(encode_message(MessageType.PONG, seq, payload))
            return
        if type_ == MessageType.CHAT_TEXT and Step.RECEIVE_TEXT in allowed:
            self.greeting = payload.decode(errors="replace")
            received.append(TextReceived(text=self.greeting))
            return
        try:
            if seq != 0:
                self._receive_reply(type_, seq, payload, received)
            elif (event := decode_event(type_, payload)) is not None:
                received.append(EventReceived(event=event))
        except RequestError as error:
            self._unreadable(seq, error, received)

    def _receive_reply(
        self, type_: int, seq: int, payload: bytes, received: list[ReceivedByClient]
    ) -> None:
        request_type = self._waiting.get(seq)
        if request_type is None:
            return
        reply = decode_reply(request_type, type_, payload)
        del self._waiting[seq]
        if isinstance(reply, ErrorReport):
            received.append(ErrorReceived(seq=seq, report=reply))
            return
        if isinstance(reply, Welcome):
            self.state = self.after(Step.RECEIVE_WELCOME)
            self.welcome = reply
            bytes_max = reply.limits.get("message_bytes_max")
            if isinstance(bytes_max, int) and bytes_max > 0:
                self.message_bytes_max = min(bytes_max, _MESSAGE_BYTES_CEILING)
                self._joiner.message_bytes_max = self.message_bytes_max
        received.append(ReplyReceived(seq=seq, request_type=request_type, reply=reply))

    def _unreadable(self, seq: int, error: RequestError, received: list[ReceivedByClient]) -> None:
        report = ErrorReport(
            code=ErrorCode.MALFORMED,
            message=f"What the server sent can't be read: {error.message}",
            field=error.field,
        )
        if self._waiting.pop(seq, None) is not None:
            received.append(ErrorReceived(seq=seq, report=report))
        else:
            received.append(EventReceived(event=report))
