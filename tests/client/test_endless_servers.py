"""A server that floods or falls silent holds no command beyond its time-outs."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest
from tests.client.nplt_process import NPLT, SECONDS_MAX, private_environment
from tests.client.scripted_peer import Script, Talk, scripted_peer

from nplt_client.errors import TimedOut
from nplt_client.settings import parse_url
from nplt_client.wire.blocking import BlockingConnection, Deadline
from nplt_protocol.messages import Hello, Prompt

GREETING, FRAGMENT, PING = 0x01, 0x80 | 0x28, 0x04


def frame(message_type: int, payload: bytes) -> bytes:
    return bytes([message_type, 0, 0]) + len(payload).to_bytes(2, "big") + payload


def floods(data: bytes, *, welcomes: bool) -> Script:
    def script(talk: Talk) -> None:
        if welcomes:
            talk.welcome()
        with suppress(OSError):
            while True:
                talk.send(data)

    return script


def falls_silent(talk: Talk) -> None:
    talk.welcome()
    talk.wait_until_gone()


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(floods(frame(GREETING, b"hello " * 100), welcomes=False), id="greetings"),
        pytest.param(floods(frame(PING, b"x" * 1_000), welcomes=False), id="pings at first"),
        pytest.param(floods(frame(PING, b"x" * 1_000), welcomes=True), id="pings"),
        pytest.param(floods(frame(FRAGMENT, b"x" * 65_535), welcomes=True), id="fragments"),
        pytest.param(falls_silent, id="silence"),
    ],
)
def test_ask_gives_up_on_an_endless_or_silent_server_within_its_time_out(
    script: Script, tmp_path: Path
) -> None:
    with scripted_peer(script) as peer:
        done = subprocess.run(
            [*NPLT, "ask", "hello", "--timeout", "1"],
            env=private_environment(tmp_path, NPLT_SERVER=peer.url),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    assert done.returncode in (7, 8), done.stderr


def test_a_reply_that_is_late_ends_the_wait_at_once_and_not_with_the_next_ping() -> None:
    with (
        scripted_peer(falls_silent) as peer,
        BlockingConnection(
            parse_url(peer.url),
            Hello(),
            deadline=Deadline(None),
            silence_seconds=SECONDS_MAX / 2,
        ) as connection,
    ):
        connection.open()
        connection.session.timeout = 0.2
        began = monotonic()
        with pytest.raises(TimedOut):
            connection.result(connection.ask(Prompt(text="hello")))
        assert monotonic() - began < SECONDS_MAX / 2
