"""The server's end of a connection: bytes to requests, replies to bytes.

`connection` holds the states and the rules. Nothing here waits, or reads a
clock or a socket. PINGs of the structured dialect get their PONGs here, many in a
row without decoding each frame.
"""

from __future__ import annotations

from nplt_protocol.codec import (
    HEARTBEAT,
    MESSAGE_TYPES,
    decode_plain_request,
    decode_request,
    dump_json,
    encode_error,
    encode_reply,
)
from nplt_protocol.codes import MORE, PLAIN_REQUESTS, ErrorCode, MessageType
from nplt_protocol.connection import (
    SERVER_STATES,
    Connection,
    ConnectionRefused,
    Dialect,
    Received,
    RequestReceived,
    RequestRefused,
    State,
    Step,
)
from nplt_protocol.errors import LocalProtocolError, RequestError
from nplt_protocol.frames import (
    HEADER,
    HEADER_BYTES,
    ByteBudget,
    Frame,
    WireLimits,
    encode_frame,
    encode_message,
)
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import Reply, Welcome

HELLO, PING, PONG = int(MessageType.HELLO), int(MessageType.PING), int(MessageType.PONG)

_FIRST_BYTES = frozenset({MessageType.HELLO, *PLAIN_REQUESTS})
_OUTSIDE_NUMBERING = frozenset({MessageType.PING, MessageType.FILE_DATA})

NOT_OUR_PROTOCOL = "This port speaks NPLT, and what came is something else."
NOT_TLS = "This port speaks NPLT without TLS, and what came is a TLS hello."
HELLO_IN_PIECES = "HELLO is never fragmented."


class ServerConnection(Connection):
    transitions = SERVER_STATES

    __slots__ = ("_hello_seq", "_open_requests", "_text_seq", "dialect")

    def __init__(self, limits: WireLimits = WireLimits()) -> None:  # noqa: B008 (frozen)
        super().__init__(State.UNDECIDED, limits)
        self.dialect: Dialect | None = None
        self._open_requests: set[int] = set()
        self._hello_seq: int | None = None
        self._text_seq = 0

    @property
    def frame_bytes_max(self) -> int:
        """The owner may raise this limit once the client is authenticated."""
        return self._decoder.frame_bytes_max

    @frame_bytes_max.setter
    def frame_bytes_max(self, value: int) -> None:
        self._decoder.frame_bytes_max = value

    def count_fragments_in(self, budget: ByteBudget) -> None:
        """Counts unfinished messages in the budget of the user, once the user is known."""
        self._joiner.move_to(budget)

    @property
    def open_requests(self) -> int:
        return len(self._open_requests)

    def skip_handshake(self) -> None:
        """Begins STRUCTURED, for a channel of a link: its client sent HELLO to another server."""
        self.state, self.dialect = State.STRUCTURED, Dialect.STRUCTURED

    # Receiving.

    def receive_data(self, data: bytes) -> list[Received]:
        if self._input_ended or not data:
            return []
        if data[0] == PING and self.allows(Step.REPLY_TO_PING) and not self.has_partial:
            pongs = _pongs_for(data, self.frame_bytes_max)
            self._pongs.append(pongs)
            if len(pongs) == len(data):
                return []
            data = data[len(pongs) :]
        elif self.state is State.UNDECIDED and not self.has_partial and data[0] not in _FIRST_BYTES:
            # The first byte decides: a frame of another protocol may never be complete.
            is_hello = data[0] == HELLO | MORE
            return [self._refuse_connection(HELLO_IN_PIECES if is_hello else NOT_OUR_PROTOCOL)]
        frames = self._decoder.receive_data(data)
        if self.state is State.UNDECIDED and frames:
            type_, seq, payload = frames[0]
            # A TLS record happens to have our layout: type 0x16, version 3.x in place of
            # the seq, the same length field, and a payload that begins with 1.
            if type_ == 0x16 and seq >> 8 == 3 and payload[:1] == b"\x01":
                return [self._refuse_connection(NOT_TLS)]
            if type_ == HELLO:
                self.state, self.dialect = self.after(Step.RECEIVE_HELLO), Dialect.STRUCTURED
            else:
                self.state, self.dialect = self.after(Step.RECEIVE_PLAIN_REQUEST), Dialect.PLAIN
        if self.state is State.PLAIN:
            received = self._receive_plain(frames)
        else:
            received = self._receive_structured(frames)
        if self._decoder.error is not None:
            received.append(
                self._refuse_connection(f"The bytes can't be framed: {self._decoder.error}.")
            )
        return received

    def _receive_plain(self, frames: list[Frame]) -> list[Received]:
        received: list[Received] = []
        for type_, seq, payload in frames:
            if type_ == MessageType.CHAT_TEXT and payload == HEARTBEAT:
                continue
            try:
                request = decode_plain_request(type_, payload, self._limits)
            except RequestError as error:
                error.forget_origin()
                received.append(RequestRefused(type=type_, seq=seq, error=error))
            else:
                received.append(
                    RequestReceived(type=MESSAGE_TYPES[type_], seq=seq, request=request)
                )
        return received

    def _receive_structured(self, frames: list[Frame]) -> list[Received]:
        received: list[Received] = []
        sends_pongs = self.allows(Step.REPLY_TO_PING)
        for frame in frames:
            type_, seq, payload = frame
            if type_ & MORE or self._joiner.is_open:
                for joined in self._joiner.receive_frame(frame):
                    if isinstance(joined, Frame):
                        self._receive_message(joined, received)
                    else:
                        type_, seq, error = joined.type, joined.seq, joined.error
                        reply_to = seq if self._claim(seq) else 0
                        received.append(RequestRefused(type=type_, seq=reply_to, error=error))
            elif type_ == PING and sends_pongs:
                self._pongs.append(HEADER.pack(PONG, seq, len(payload)) + payload)
            else:
                self._receive_message(frame, received)
        return received

    def _receive_message(self, message: Frame, received: list[Received]) -> None:
        type_, seq, payload = message
        if type_ == PONG:
            return
        if type_ == PING and self.allows(Step.REPLY_TO_PING):
            self._pongs.append(encode_message(PONG, seq, payload))
            return
        refused = None
        if type_ == HELLO:
            refused = self._claim_hello(seq)
        elif type_ not in _OUTSIDE_NUMBERING and not self._claim(seq):
            refused = RequestRefused(type=type_, seq=0, error=_bad_number(seq))
        if refused is not None:
            received.append(refused)
            return
        try:
            request = decode_request(type_, payload, self._limits)
        except RequestError as error:
            error.forget_origin()
            received.append(RequestRefused(type=type_, seq=seq, error=error))
        else:
            received.append(RequestReceived(type=MESSAGE_TYPES[type_], seq=seq, request=request))

    def _claim(self, seq: int) -> bool:
        """Marks the number as open; False if it can't be used now."""
        if seq == 0 or seq in self._open_requests:
            return False
        self._open_requests.add(seq)
        return True

    def _claim_hello(self, seq: int) -> RequestRefused | None:
        # HELLO may carry 0, which can't be claimed.
        usable = self._claim(seq) or seq == 0
        if not self.allows(Step.RECEIVE_HELLO) or self._hello_seq is not None:
            error = RequestError(ErrorCode.CONFLICT, "HELLO was sent before.")
            return RequestRefused(type=MessageType.HELLO, seq=seq if usable else 0, error=error)
        if not usable:
            return RequestRefused(type=MessageType.HELLO, seq=0, error=_bad_number(seq))
        self._hello_seq = seq
        return None

    def _refuse_connection(self, reason: str) -> ConnectionRefused:
        self.end_input()
        return ConnectionRefused(reason=reason)

    # Sending.

    def send_text(self, text: str) -> bytes:
        """Sends a greeting, the reason of a refusal, or any text of the plain dialect."""
        self.state = self.after(Step.SEND_TEXT)
        return self._numbered(MessageType.CHAT_TEXT, text.encode())

    def send_thought(self, payload: JsonObject) -> bytes:
        self.state = self.after(Step.SEND_THOUGHT)
        return self._numbered(MessageType.AGENT_THOUGHT, dump_json(payload))

    def send_welcome(self, seq: int, welcome: Welcome) -> bytes:
        welcomed = self.after(Step.SEND_WELCOME)
        if seq != self._hello_seq:
            raise LocalProtocolError(f"no HELLO #{seq} waits for its WELCOME")
        bytes_max = self._limits.message_bytes_max
        data = encode_reply(MessageType.HELLO, seq, welcome, message_bytes_max=bytes_max)
        self.state = welcomed
        self._mark_replied(seq)
        return data

    def send_reply(self, type: MessageType, seq: int, reply: Reply | JsonObject) -> bytes:  # noqa: A002
        """`type` is the type of the request."""
        self.state = self.after(Step.SEND_REPLY)
        if type != MessageType.PING and seq not in self._open_requests:
            raise LocalProtocolError(f"no request #{seq} waits for a reply")
        data = encode_reply(type, seq, reply, message_bytes_max=self._limits.message_bytes_max)
        self._mark_replied(seq)
        return data

    def send_error(self, seq: int, error: RequestError, session_id: str | None = None) -> bytes:
        """Answers the request with that seq; an error with seq 0 belongs to no request."""
        self.state = self.after(Step.SEND_ERROR)
        data = encode_error(seq, error, session_id)
        self._mark_replied(seq)
        return data

    def close(self) -> None:
        self._open_requests.clear()
        super().close()

    def _mark_replied(self, seq: int) -> None:
        self._open_requests.discard(seq)
        if seq == self._hello_seq:
            self._hello_seq = None

    def _numbered(self, type_: MessageType, payload: bytes) -> bytes:
        data = encode_frame(type_, self._text_seq, payload)
        self._text_seq = (self._text_seq + 1) % 0x10000
        return data


def _bad_number(seq: int) -> RequestError:
    sentence = (
        "A request needs a seq from 1 to 65535."
        if seq == 0
        else f"Seq {seq} belongs to a request that has no reply yet."
    )
    return RequestError(ErrorCode.MALFORMED, sentence, field="seq")


def _pongs_for(data: bytes, frame_bytes_max: int) -> bytes:
    """Answers the complete PINGs at the start of `data`. A PONG is its PING with another
    type, so they are copied at once and one byte of each frame is changed."""
    pongs, offset, end = bytearray(data), 0, len(data)
    unpack = HEADER.unpack_from
    while end - offset >= HEADER_BYTES:
        type_, _, length = unpack(data, offset)
        stop = offset + HEADER_BYTES + length
        if type_ != PING or stop > end or length > frame_bytes_max:
            break
        pongs[offset] = PONG
        offset = stop
    return bytes(pongs[:offset])
