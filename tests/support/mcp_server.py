"""A real MCP server, made with the official SDK, in a process of its own.

It talks over its standard input and output, and at the same time by streamable
HTTP on a free port of the loopback, which it writes into the file it is given.
So one process, which takes a second to start, is enough for both.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer

server = MCPServer("arithmetic", log_level="CRITICAL")
happened: set[str] = set()
something_happened = asyncio.Condition()
at_work: set[asyncio.Task[None]] = set()


async def happens(event: str) -> None:
    async with something_happened:
        happened.add(event)
        something_happened.notify_all()


@server.tool()
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@server.tool()
def shout(words: list[str]) -> list[str]:
    """Each of them in capitals."""
    return [word.upper() for word in words]


@server.tool()
def divide(a: float, b: float) -> float:
    """One number divided by another."""
    if b == 0:
        raise ValueError("nobody can divide by zero")
    return a / b


@server.tool()
def picture() -> Image:
    """Something to look at."""
    return Image(data=b"\x89PNG" + bytes(1230), format="png")


@server.tool()
def environment() -> list[str]:
    """The names of the variables this process was given."""
    return sorted(os.environ)


@server.tool()
async def dawdle(event: str) -> str:
    """Never comes to an end by itself."""
    await happens(f"{event} begins")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        # By then the request is gone; so the news needs a task of its own.
        at_work.add(asyncio.create_task(happens(f"{event} is cancelled")))
        raise
    return "at last"


@server.tool()
async def wait_for(event: str) -> str:
    """Returns when it has happened."""
    async with something_happened:
        await something_happened.wait_for(lambda: event in happened)
    return event


@server.tool()
async def learn(name: str, context: Context) -> str:
    """One tool more, from now on."""
    server.add_tool(lambda: name, name=name, description=f"Says {name}.")
    await context.notify_tools_changed()
    return "learned"


@server.tool()
def process_id() -> int:
    return os.getpid()


async def main(port_file: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    web = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="critical"))
    at_work.add(asyncio.create_task(web.serve(sockets=[listener])))
    port_file.write_text(str(listener.getsockname()[1]))
    await server.run_stdio_async()
    os._exit(0)  # without waiting for those who listen by HTTP


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
