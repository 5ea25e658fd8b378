"""A server in the process of the test, for tests of the gateway's own objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nplt_server.app import Server
from nplt_server.settings import Settings
from nplt_server.start import serve


@asynccontextmanager
async def running(data_dir: Path) -> AsyncIterator[Server]:
    started: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
    settings = Settings.model_validate(
        {
            "listen": {"port": 0},
            "data_dir": data_dir,
            "providers": [{"type": "offline", "words_per_second": 0}],
        }
    )
    serving = asyncio.create_task(
        serve(settings, lambda host, port, http_url: None, started.set_result)
    )
    try:
        yield await started
    finally:
        started.result().stop()
        await serving
