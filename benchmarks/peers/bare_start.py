"""What a server of this kind can't start without: asyncio, msgspec, orjson, a pydantic model.

It builds one model, as settings are, checks it, and listens.
"""

from __future__ import annotations

import asyncio

import msgspec
import orjson
from pydantic import BaseModel


class Settings(BaseModel):
    host: str = "127.0.0.1"
    port: int = 0


async def main() -> None:
    settings = Settings.model_validate(orjson.loads(msgspec.json.encode({"port": 0})))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, settings.host, settings.port)
    print(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
