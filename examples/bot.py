"""A bot for a chat of many people: who says what on stdin, its answers on stdout.

    printf 'ada: hello\nbob: good morning\nada: what did I say?\n' | python examples/bot.py

Each person has a conversation of their own, called `bot ada`, `bot bob`: when the
bot is started again, it remembers them. People don't wait for each other; one
person's lines are answered in order. A server that goes away for a while is
waited for, and nothing is asked twice.

Put your chat network in place of stdin and stdout, and it is a real one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

import nplt_client

SERVER = os.environ.get("NPLT_SERVER", "nplt://127.0.0.1:9999")
LINES_WAITING_MAX = 100


async def main() -> None:
    people: dict[str, MemoryObjectSendStream[str]] = {}
    async with anyio.create_task_group() as tasks:
        async for line in anyio.wrap_file(sys.stdin):
            name, colon, text = line.strip().partition(": ")
            if colon and text:
                if name not in people:
                    people[name] = welcome(name, tasks)
                await people[name].send(text)
        for lines in people.values():
            lines.close()


def welcome(name: str, tasks: TaskGroup) -> MemoryObjectSendStream[str]:
    lines, texts = anyio.create_memory_object_stream[str](LINES_WAITING_MAX)
    tasks.start_soon(talk_with, name, texts)
    return lines


async def talk_with(name: str, texts: MemoryObjectReceiveStream[str]) -> None:
    # Events come for one conversation at a time, so each person has a client.
    async with texts, nplt_client.connect(SERVER, on_connection=tell(name)) as client:
        await find_conversation(client, f"bot {name}")
        async for text in texts:
            try:
                answer = await client.ask_text(text)
            except nplt_client.NpltError as error:
                answer = f"(sorry: {error.message})"
            print(f"@{name} {answer}", flush=True)


async def find_conversation(client: nplt_client.Client, name: str) -> None:
    try:
        await client.switch(name)
    except nplt_client.RequestRefused as error:
        if error.code != "not_found":
            raise
        await client.new(name, system="You are a friendly bot. Answer in one sentence.")


def tell(name: str) -> Callable[[nplt_client.ConnectionState], None]:
    def tell_state(state: nplt_client.ConnectionState) -> None:
        if isinstance(state, nplt_client.Reconnecting):
            print(f"{name}: {state.reason}; attempt {state.attempt}", file=sys.stderr)

    return tell_state


if __name__ == "__main__":
    anyio.run(main)
