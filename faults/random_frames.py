"""P9: no bytes stop the server or disturb another client.

Connections come and go and send frames that are invalid in every way a frame can be, while a client
is in the middle of a conversation. The frames are random; a run with the same seed sends the same
bytes.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable
from typing import Final

from faults.clients import Finished, Talker
from faults.plan import Plan
from faults.progress import Progress
from faults.promises import Promises
from faults.results import Promised, Result
from faults.serving import ServerProgram, newest_log
from nplt_protocol.codes import MessageType

_FRAMES_PER_CONNECTION: Final = 2_000
_LIKELY: Final = tuple(
    map(
        int,
        (
            MessageType.PROMPT,
            MessageType.HISTORY_REQUEST,
            MessageType.ATTACH,
            MessageType.HELLO,
            MessageType.SESSION_LIST,
        ),
    )
)


def random_frames(plan: Plan) -> list[Result]:
    count = 20_000 if plan.quick else 100_000
    complaints: list[str] = []
    with ServerProgram(plan.new_path("frames") / "data") as server:
        server.start()
        with Talker(server.port, Promises()) as bystander:
            bystander.create()
            progress = Progress("P9 frames", count)
            send_random_frames(
                lambda: socket.create_connection(("127.0.0.1", server.port)),
                plan.chance("frames"),
                count=count,
                sent=progress.step,
            )
            if not isinstance(bystander.ask(), Finished):
                complaints.append("who was there before is no longer answered")
        if "Traceback" in newest_log(server.data_dir):
            complaints.append(f"the server was surprised: {newest_log(server.data_dir)}")
        with Talker(server.port, Promises()) as newcomer:
            newcomer.create()
            if not isinstance(newcomer.ask(), Finished):
                complaints.append("a newcomer is not answered")
    return [Promised(number="P9", what="random frames").judged(complaints, f"{count:,} frames")]


def send_random_frames(
    connect: Callable[[], socket.socket],
    chance: random.Random,
    *,
    count: int,
    sent: Callable[[], None] = lambda: None,
) -> None:
    hello = struct.pack(">BHH", MessageType.HELLO, 1, 0)
    for start in range(0, count, _FRAMES_PER_CONNECTION):
        frames = [_frame(chance) for _ in range(min(_FRAMES_PER_CONNECTION, count - start))]
        if chance.random() < 0.8:
            frames.insert(0, hello)
        with connect() as sock:
            _drain_while_sending(sock, b"".join(frames))
        for _ in frames:
            sent()


def _frame(chance: random.Random) -> bytes:
    code = chance.choice((chance.randrange(256), *_LIKELY))
    payload = chance.choice(
        (
            b"",
            b"{}",
            chance.randbytes(chance.randrange(40)),
            b'{"text":"' + bytes(chance.choices(b"abc !/\\", k=5)) + b'"}',
            b'{"session_id":"' + bytes(chance.choices(b"0123456789abcdef./-", k=8)) + b'"}',
            b'{"before":%d,"limit":%d}' % (chance.randrange(9), chance.randrange(3)),
        )
    )
    return struct.pack(">BHH", code, chance.randrange(65_536), len(payload)) + payload


def _drain_while_sending(sock: socket.socket, data: bytes) -> None:
    """Reads while it sends, so that neither side waits for ever for the other to read."""
    sock.setblocking(False)
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view[:4_096]) :]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            return
        try:
            if not sock.recv(1 << 20):
                return
        except BlockingIOError:
            pass
        except ConnectionResetError:
            return
