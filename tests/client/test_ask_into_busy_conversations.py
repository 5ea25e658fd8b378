"""`nplt ask` waits for a conversation whose queue is full, and for a turn slot."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import orjson
from tests.client.nplt_process import NPLT, SECONDS_MAX, private_environment, run_nplt
from tests.support.raw_client import CANCEL, PROMPT, RawClient
from tests.support.server_process import ServerProcess

AT_ONCE = 30


@contextmanager
def asking(server: str, home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Gives an `nplt ask` in a process of its own."""
    process = subprocess.Popen(
        [*NPLT, "ask", *arguments],
        env=private_environment(home, NPLT_SERVER=server),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def full_conversation(server: ServerProcess) -> Iterator[tuple[RawClient, str]]:
    """Gives a client whose conversation runs one turn and queues another, and the running one."""
    with RawClient(server.port) as client:
        client.hello({"session_id": "shared", "create": True})
        running = client.request(PROMPT, {"text": "!slow 60 one two"}).json["turn_id"]
        client.request(PROMPT, {"text": "second"})
        yield client, running


def url_of(server: ServerProcess) -> str:
    return f"nplt://127.0.0.1:{server.port}"


def test_thirty_simultaneous_asks_in_one_conversation_give_thirty_answers(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = url_of(start_server(limits={"waiting_prompts_max": 2}))

    def ask(number: int) -> tuple[int, str]:
        done = run_nplt(
            "ask", "-s", "shared", "--create", f"word{number}", home=tmp_path, server=server
        )
        return done.returncode, done.stdout.strip()

    with ThreadPoolExecutor(AT_ONCE) as together:
        answers = list(together.map(ask, range(AT_ONCE)))
    assert answers == [(0, f"word{number}") for number in range(AT_ONCE)]


def test_ask_waits_for_a_full_queue_and_sends_the_prompt_again(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = start_server(limits={"waiting_prompts_max": 1})
    with (
        full_conversation(server) as (client, running),
        asking(url_of(server), tmp_path, "-s", "shared", "third") as process,
    ):
        assert process.stderr is not None
        line = process.stderr.readline()
        client.request(CANCEL, {"turn_id": running})
        stdout, _ = process.communicate(timeout=SECONDS_MAX)
    assert line.startswith("waiting: 1 request waits here already")
    assert (process.returncode, stdout) == (0, "third\n")


def test_ask_with_no_wait_exits_9_if_the_queue_is_full(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = start_server(limits={"waiting_prompts_max": 1})
    with full_conversation(server):
        done = run_nplt(
            "ask", "-s", "shared", "--no-wait", "third", home=tmp_path, server=url_of(server)
        )
    assert (done.returncode, done.stdout) == (9, "")
    assert "1 request waits here already" in done.stderr


def test_ask_with_a_timeout_ends_with_7_while_it_waits_for_a_full_queue(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = start_server(limits={"waiting_prompts_max": 1})
    with full_conversation(server):
        arguments = ("ask", "-s", "shared", "--timeout", "1", "third")
        done = run_nplt(*arguments, home=tmp_path, server=url_of(server))
    assert done.returncode == 7


def test_who_waits_for_a_turn_slot_is_given_the_name_of_the_setting(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = start_server(limits={"turns_per_user_max": 1})
    with (
        full_conversation(server),
        asking(url_of(server), tmp_path, "third") as process,
    ):
        assert process.stderr is not None
        line = process.stderr.readline()
        status = run_nplt("status", "--json", home=tmp_path, server=url_of(server))
    assert line == ("waits for a slot: 1 turn of local runs already (limits.turns_per_user_max)\n")
    turns = orjson.loads(status.stdout)["turns"]
    assert turns["waiting_for_slot"] == {"limits.turns_per_user_max": 1}
