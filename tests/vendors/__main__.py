"""Both vendors in a process of their own, until it is told to stop.

    python -m tests.vendors --port 0 [--script package.module:function]

prints its address and serves; the script is a function from a `Call` to an `Answer`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import signal

from tests.vendors.answers import Script, echo
from tests.vendors.emulator import Emulator


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.vendors")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--key", default="sk-emulated", help="the only one that is let in")
    parser.add_argument("--script", type=_script, default=echo, metavar="MODULE:FUNCTION")
    given = parser.parse_args()
    asyncio.run(_serve(given.port, given.key, given.script))


async def _serve(port: int, key: str, script: Script) -> None:
    vendors = Emulator(script, key=key)
    await vendors.open(port)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    print(vendors.url, flush=True)
    await stop.wait()
    await vendors.close()


def _script(name: str) -> Script:
    module, _, function = name.partition(":")
    script: Script = getattr(importlib.import_module(module), function)
    return script


if __name__ == "__main__":
    main()
