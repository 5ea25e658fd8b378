"""Runs the calls of one answer side by side; results come in call order.

Whatever happens becomes a result the model can read: an unknown tool, broken
arguments, an exception, a time-out, a cancellation. So no call is ever left
without its result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from difflib import get_close_matches
from typing import Literal

import anyio

from nplt_server.clean_text import clean_text
from nplt_server.tools.base import Tool, ToolDescription, ToolFailed
from nplt_storage.facts.tool_calls import ToolCallRequest, ToolCallResult

log = logging.getLogger(__name__)

Started = Callable[[ToolCallRequest], None]
Finished = Callable[[ToolCallResult], None]


class ToolRunner:
    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        clock: Callable[[], datetime],
        seconds_max: float = 30.0,
        at_once_max: int = 4,
        calls_max: int = 8,
    ) -> None:
        self._tools = {tool.description.name: tool for tool in tools}
        self._clock = clock
        self._seconds_max = seconds_max
        self._at_once_max = at_once_max
        self._calls_max = calls_max

    @property
    def descriptions(self) -> tuple[ToolDescription, ...]:
        return tuple(tool.description for tool in self._tools.values())

    async def run_all(
        self, calls: tuple[ToolCallRequest, ...], *, started: Started, finished: Finished
    ) -> None:
        """`finished` hears each result as it comes. Cancelled, it leaves the
        rest unfinished: `skipped` says what to record for them."""
        places = anyio.CapacityLimiter(self._at_once_max)

        async def run(call: ToolCallRequest) -> None:
            async with places:
                started(call)
                finished(await self._run_one(call))

        async with anyio.create_task_group() as side_by_side:
            for number, call in enumerate(calls):
                if number < self._calls_max:
                    side_by_side.start_soon(run, call)
                else:
                    reason = f"not run: at most {self._calls_max} calls in one step"
                    finished(self.skipped(call, reason))

    def skipped(self, call: ToolCallRequest, reason: str) -> ToolCallResult:
        return self._result(call, "skipped", reason, 0.0)

    async def _run_one(self, call: ToolCallRequest) -> ToolCallResult:
        began = anyio.current_time()
        status, text = await self._outcome(call)
        return self._result(call, status, text, anyio.current_time() - began)

    async def _outcome(self, call: ToolCallRequest) -> tuple[Literal["success", "failed"], str]:
        tool = self._tools.get(call.tool_name)
        if tool is None:
            near = get_close_matches(call.tool_name, self._tools, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            return "failed", f"there is no tool {call.tool_name!r}.{hint}"
        if call.arguments is None:
            return "failed", call.parse_error or "the arguments could not be read"
        try:
            with anyio.fail_after(self._seconds_max):
                return "success", await tool.run(dict(call.arguments))
        except TimeoutError:
            return "failed", f"{call.tool_name} did not finish within {self._seconds_max:g} s"
        except ToolFailed as failure:
            return "failed", str(failure)
        except Exception as error:
            log.exception("tool %s failed", call.tool_name)
            return "failed", f"{call.tool_name} failed: {type(error).__name__}"

    def _result(
        self,
        call: ToolCallRequest,
        status: Literal["success", "failed", "skipped"],
        text: str,
        duration: float,
    ) -> ToolCallResult:
        return ToolCallResult(
            tool_call_id=call.tool_call_id,
            tool_name=call.tool_name,
            status=status,
            result=clean_text(text),
            duration=round(duration, 6),
            timestamp=self._clock(),
        )
