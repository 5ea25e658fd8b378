"""One run of one tool, which ends in time, whatever the tool does.

The tool has a task of its own. One that swallows its cancellation is left
behind after a moment of grace, and the turn goes on without it. Nothing a tool
raises gets past here, not even what is meant to end the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import anyio

from nplt_protocol.json_values import JsonObject
from nplt_server.tools.base import Tool, ToolFailed, ToolHost

log = logging.getLogger(__name__)

GRACE_SECONDS: Final = 1.0
"""For a cancelled tool to put away what it was working with."""

_NAMES_MAX: Final = 5

_left_behind: set[asyncio.Task[Outcome]] = set()
"""The loop itself would forget them half way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    status: Literal["success", "failed"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    tool: Tool
    arguments: JsonObject
    host: ToolHost
    seconds_max: float

    @property
    def name(self) -> str:
        return self.tool.description.name


async def attempt(work: Work, *, ended: Callable[[Outcome | None], None]) -> None:
    """`ended` hears what came of it, once, also when this is cancelled: `None`, unless
    the tool had ended by then."""
    task = asyncio.create_task(_run(work), name=f"tool {work.name}")
    try:
        await asyncio.wait({task}, timeout=work.seconds_max)
    except asyncio.CancelledError:
        await _dismiss(task, work)
        ended(_outcome(task) if _has_succeeded(task) else None)
        raise
    if task.done():
        ended(_outcome(task))
        return
    await _dismiss(task, work)
    late = f"{work.name} did not finish within {work.seconds_max:g} s"
    ended(_outcome(task) if _has_succeeded(task) else Outcome(status="failed", text=late))


async def _run(work: Work) -> Outcome:
    try:
        text: object = await work.tool.run(work.arguments, work.host)
    except asyncio.CancelledError:
        raise
    except ToolFailed as failure:
        return Outcome(status="failed", text=str(failure))
    except BaseException as error:
        log.exception("tool %s failed", work.name)
        return Outcome(status="failed", text=f"{work.name} failed: {_in_short(error)}")
    if not isinstance(text, str):
        log.error("tool %s gave %s, not text", work.name, type(text).__name__)
        what = f"{work.name} gave {type(text).__name__} instead of text"
        return Outcome(status="failed", text=what)
    return Outcome(status="success", text=text)


async def _dismiss(task: asyncio.Task[Outcome], work: Work) -> None:
    task.cancel()
    with anyio.CancelScope(shield=True):
        await asyncio.wait({task}, timeout=GRACE_SECONDS)
    if not task.done():
        log.warning("tool %s does not let itself be cancelled and is left behind", work.name)
        _left_behind.add(task)
        task.add_done_callback(_left_behind.discard)


def _has_succeeded(task: asyncio.Task[Outcome]) -> bool:
    return task.done() and not task.cancelled() and task.result().status == "success"


def _outcome(task: asyncio.Task[Outcome]) -> Outcome:
    if task.cancelled():
        return Outcome(status="failed", text="the tool gave up: it cancelled itself")
    return task.result()


def _in_short(error: BaseException) -> str:
    """What failed, by name: what an exception says may hold what no model should read.
    Of several that failed together, the first few."""
    names: dict[str, None] = {}
    waiting = [error]
    while waiting and len(names) < _NAMES_MAX:
        match waiting.pop():
            case BaseExceptionGroup() as several:
                waiting += reversed(several.exceptions)
            case ToolFailed() as failure:
                names[str(failure)] = None
            case one:
                names[type(one).__name__] = None
    return ", ".join(names)
