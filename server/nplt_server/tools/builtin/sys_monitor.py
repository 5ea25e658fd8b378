"""`sys_monitor`: how busy the machine is that the server runs on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field

from nplt_server.tools.base import Tool
from nplt_server.tools.typed import typed_tool

_SAMPLE_SECONDS: Final = 0.1
"""What a processor does can only be seen over a while."""

_DISKS_MAX: Final = 8
_GIB: Final = 2**30


def sys_monitor_tool() -> Tool:
    return typed_tool(sys_monitor)


def sys_monitor(
    metric: Annotated[
        Literal["cpu", "memory", "disk", "all"], Field(description="what to look at")
    ] = "all",
) -> str:
    """How much of the server's processors, memory and disks is in use."""
    lines = {"cpu": _cpu, "memory": _memory, "disk": _disks}
    chosen = lines if metric == "all" else (metric,)
    return "\n".join(line for name in chosen for line in lines[name]())


def _cpu() -> Iterator[str]:
    import psutil

    cores = psutil.cpu_count() or 1
    usage = psutil.cpu_percent(interval=_SAMPLE_SECONDS)
    yield f"CPU usage: {usage:.1f} % of {cores} {'core' if cores == 1 else 'cores'}"


def _memory() -> Iterator[str]:
    import psutil

    memory = psutil.virtual_memory()
    yield _used("Memory", memory.total - memory.available, memory.total)


def _disks() -> Iterator[str]:
    import psutil

    mounted = {part.device: part.mountpoint for part in reversed(psutil.disk_partitions())}
    for place in sorted({os.sep, *mounted.values()})[:_DISKS_MAX]:
        try:
            usage = psutil.disk_usage(place)
        except OSError:
            continue  # a drive without a disk in it
        yield _used(f"Disk {place}", usage.total - usage.free, usage.total)


def _used(what: str, used: int, total: int) -> str:
    share = 100 * used / total if total else 0.0
    return f"{what}: {used / _GIB:.1f} of {total / _GIB:.1f} GiB used ({share:.1f} %)"
