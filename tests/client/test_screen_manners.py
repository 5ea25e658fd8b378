"""How the chat answers: at once, where it is seen, and without doing what was not asked."""

from __future__ import annotations

from collections.abc import Awaitable
from errno import ECONNREFUSED
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nplt_client.chat_commands import COMMANDS as PIPED_COMMANDS
from nplt_client.chat_vocabulary import VOCABULARY, order_in
from nplt_client.connection_states import ConnectionState, Offline, Online, Reconnecting
from nplt_client.errors import ConnectionLost, RequestRefused
from nplt_client.fullscreen.changes import TurnBegan, TurnEnded
from nplt_client.fullscreen.commands import COMMANDS, run_command
from nplt_client.fullscreen.course import Course
from nplt_client.fullscreen.floor import Floor
from nplt_client.fullscreen.status import StatusFacts, status_words
from nplt_client.fullscreen.stopping import Stopping
from nplt_client.fullscreen.visit import Visit
from nplt_client.linemode.commands import run_command as run_in_line_mode
from nplt_client.settings import parse_url
from nplt_client.verdicts import cannot_connect

AWAY = Reconnecting(attempt=1, in_seconds=3.0, reason="lost")
SOMEWHERE = parse_url("nplt://localhost:1")


class FakeClient:
    """Does as it is told, and remembers it."""

    def __init__(self, connection: ConnectionState) -> None:
        self.connection = connection
        self.session_id = "a" * 32
        self.done: list[str] = []

    async def delete(self, session_id: str) -> None:
        self.done.append(f"delete {session_id}")

    async def fork(self, name: str | None = None) -> Any:
        return SimpleNamespace(session_id="b" * 32)

    async def switch(self, session_id: str) -> None:
        self.session_id = session_id

    async def cancel(self, turn_id: str) -> None:
        self.done.append(f"cancel {turn_id}")

    async def status(self) -> None:
        self.done.append("status")


class FakeFloor:
    def __init__(self, connection: ConnectionState | None = None) -> None:
        self.client = FakeClient(connection or Online())
        self.visit = SimpleNamespace(
            client=self.client, name="my notes", is_stored=True, course=Course()
        )
        self.told: list[str] = []

    async def tell(self, text: str) -> None:
        self.told.append(text)

    async def go(self, going: Awaitable[object]) -> None:
        await going
        self.told.append("went")


def floor_of(fake: FakeFloor) -> Floor:
    return cast(Floor, fake)


# Commands


@pytest.mark.parametrize("name", [name for name, word in VOCABULARY.items() if not word.argument])
def test_a_command_that_takes_nothing_does_nothing_when_given_something(name: str) -> None:
    for known in (COMMANDS, PIPED_COMMANDS):
        if name in known:
            assert order_in(f"/{name}  ", known).argument == ""
            with pytest.raises(RequestRefused, match="takes nothing"):
                order_in(f"/{name} 2", known)


@pytest.mark.parametrize("connection", [AWAY, Offline(reason="gone")])
async def test_what_needs_the_server_is_refused_at_once_while_it_is_away(
    connection: ConnectionState,
) -> None:
    fake = FakeFloor(connection)
    for run in (run_command, run_in_line_mode):
        with pytest.raises(ConnectionLost, match="Not connected"):
            await run(floor_of(fake), "/status")
    assert fake.client.done == []
    await run_command(floor_of(fake), "/help")
    assert fake.told


async def test_a_deleted_conversation_is_named_with_the_way_back() -> None:
    fake = FakeFloor()
    await run_command(floor_of(fake), "/delete")
    assert fake.client.done == [f"delete {'a' * 32}"]
    went, told = fake.told
    assert went == "went", "what is told stands in the conversation one sees then"
    assert "'my notes' is in the trash" in told
    assert f"nplt undelete {'a' * 32}" in told


async def test_a_copy_says_what_it_is_a_copy_of() -> None:
    fake = FakeFloor()
    await run_command(floor_of(fake), "/fork")
    assert fake.client.session_id == "b" * 32
    assert fake.told == ["went", "this is a copy of 'my notes', which stays as it is"]


# Stopping


async def test_an_answer_is_asked_to_stop_once_at_a_time() -> None:
    fake = FakeFloor()
    stopping = Stopping(cast(Visit, fake.visit))
    assert not stopping.is_possible
    await stopping.stop()
    fake.visit.course.follow(TurnBegan(turn_id="t", model="m"))
    assert stopping.is_possible

    seen: list[str] = []

    async def cancel(turn_id: str) -> None:
        await stopping.stop()
        seen.append(stopping.why_not)

    fake.client.cancel = cancel
    await stopping.stop()
    assert seen == ["the answer is being stopped"]
    assert stopping.is_possible


def test_without_a_server_nothing_can_be_stopped_and_the_second_press_leaves() -> None:
    fake = FakeFloor(AWAY)
    fake.visit.course.follow(TurnBegan(turn_id="t", model="m"))
    stopping = Stopping(cast(Visit, fake.visit))
    assert not stopping.is_possible
    assert "while disconnected" in stopping.how_to_leave
    assert "once more leaves" in stopping.how_to_leave
    assert [stopping.is_second_press(), stopping.is_second_press()] == [False, True]


def test_the_status_line_promises_no_stop_without_a_connection() -> None:
    assert "(Esc stops)" in status_words(StatusFacts(is_running=True), 80)
    assert "(Esc stops)" not in status_words(StatusFacts(is_running=True, connection=AWAY), 80)


# What is known


def test_a_long_name_gives_way_before_what_is_known_of_the_conversation() -> None:
    words = status_words(
        StatusFacts(
            model="openai/gpt-5.2-mini",
            name="a conversation with quite a long name",
            input_tokens=12_000,
            context_percent=41.0,
            others=("2 more windows",),
        ),
        76,  # eighty columns, less the margins
    )
    assert "context 41 %" in words
    assert "with 2 more windows" in words


def test_another_conversation_begins_without_the_tokens_of_the_one_left() -> None:
    course = Course()
    course.follow(
        TurnEnded(turn_id="t", state="completed", error=None, input_tokens=7, output_tokens=8)
    )
    course.start_over()
    assert (course.input_tokens, course.output_tokens) == (0, 0)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"),
        ConnectionRefusedError(ECONNREFUSED, "Connection refused"),
        OSError(
            f"Multiple exceptions: [Errno {ECONNREFUSED}] Connect call failed ('::1', 1, 0, 0), "
            f"[Errno {ECONNREFUSED}] Connect call failed ('127.0.0.1', 1)"
        ),
    ],
)
def test_that_nobody_listens_is_said_in_the_words_of_the_system(error: OSError) -> None:
    told = cannot_connect(SOMEWHERE, error).message
    assert told == f"can't connect to {SOMEWHERE}: Connection refused"
