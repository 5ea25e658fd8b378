"""The whole server with real sockets, in a thread of this process.

For tests that need what takes long to import (the vendors' SDKs) and nothing of what
makes a process: no signals, no death.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

from nplt_server.app import Server
from nplt_server.settings import Settings
from nplt_server.start import serve


@contextmanager
def serving(data_dir: Path, settings: Mapping[str, object]) -> Iterator[int]:
    """Its port."""
    with serving_here(data_dir, settings) as (port, _):
        yield port


@contextmanager
def serving_here(data_dir: Path, settings: Mapping[str, object]) -> Iterator[tuple[int, Server]]:
    """Its port, and the server itself, which runs in another thread."""
    whole = {"listen": {"port": 0}, "data_dir": data_dir, **settings}
    ready: Queue[tuple[Server, asyncio.AbstractEventLoop] | BaseException] = Queue()
    ports: list[int] = []

    def run() -> None:
        try:
            asyncio.run(
                serve(
                    Settings.model_validate(whole),
                    lambda host, port, http_url: ports.append(port),
                    lambda server: ready.put((server, asyncio.get_running_loop())),
                )
            )
        except BaseException as error:  # whoever waits for it is to know
            ready.put(error)

    thread = threading.Thread(target=run, name="server", daemon=True)
    thread.start()
    started = ready.get(timeout=30)
    if isinstance(started, BaseException):
        raise started
    server, loop = started
    try:
        yield ports[0], server
    finally:
        loop.call_soon_threadsafe(server.stop)
        thread.join(timeout=30)
