"""Runs the calls of one answer side by side, and gives every call one result.

Whatever happens becomes a result the model can read: an unknown tool, broken
arguments, a refusal, an exception, a time-out, a cancellation. What was never
begun is `skipped`; what was stopped half way has `failed`, for it may have done
something already. A call that people are asked about holds up no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final

import anyio

from nplt_server.tools.asking import Asker, NobodyToAsk, Permission
from nplt_server.tools.attempt import Outcome, Work, attempt
from nplt_server.tools.base import Tool, ToolDescription, ToolHost, ToolPolicy
from nplt_server.tools.bounds import bounded
from nplt_server.tools.offer import ToolOffer, offer_of
from nplt_server.tools.outside import OutsideAnyConversation
from nplt_server.tools.policy import NO_POLICIES, ToolPolicies, did_you_mean, policy_of, refusal
from nplt_storage.facts.tool_calls import ToolCallRequest, ToolCallResult, ToolStatus

Started = Callable[[ToolCallRequest], None]
Finished = Callable[[ToolCallResult], None]

_NAME_CHARACTERS_MAX: Final = 100
"""Of a name that no tool has, when it is said back."""


class ToolRunner:
    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        clock: Callable[[], datetime],
        policies: ToolPolicies = NO_POLICIES,
        seconds_max: float = 30.0,
        at_once_max: int = 4,
        calls_max: int = 8,
    ) -> None:
        """The tools are gone through anew whenever they are needed: some come and go."""
        self._all = tools
        self._clock = clock
        self._offer = ToolOffer()
        self._policies = policies
        self._seconds_max = seconds_max
        self._at_once_max = at_once_max
        self._calls_max = calls_max

    @property
    def offer(self) -> ToolOffer:
        """What a model is offered, always in the same order."""
        descriptions = tuple(tool for tool, policy in self.every if policy != "deny")
        if descriptions != self._offer.descriptions:
            self._offer = offer_of(descriptions)
        return self._offer

    @property
    def every(self) -> tuple[tuple[ToolDescription, ToolPolicy], ...]:
        """All tools there are now, also those that are not offered."""
        descriptions = (tool.description for tool in self._tools().values())
        return tuple((one, policy_of(one, self._policies)) for one in descriptions)

    def _tools(self) -> Mapping[str, Tool]:
        tools: dict[str, Tool] = {}
        for tool in self._all:
            tools.setdefault(tool.description.name, tool)  # a later one takes no one's place
        return tools

    async def run_all(
        self,
        calls: tuple[ToolCallRequest, ...],
        *,
        started: Started,
        finished: Finished,
        host: ToolHost | None = None,
        asker: Asker | None = None,
        cancel_reason: Callable[[], str] = lambda: "cancelled",
    ) -> None:
        """`finished` hears one result of each call, as they come; the rest of them
        before this ends if it is cancelled."""
        places = anyio.CapacityLimiter(self._at_once_max)
        unheard = dict(enumerate(calls))

        def hear(number: int, result: ToolCallResult) -> None:
            del unheard[number]
            finished(result)

        async def run(number: int, call: ToolCallRequest, work: Work) -> None:
            if not (permission := await self._permission(call, work.tool, asker)).allowed:
                hear(number, self.skipped(call, permission.why_not))
                return
            async with places:
                began = anyio.current_time()

                def ended(outcome: Outcome | None) -> None:
                    elapsed = anyio.current_time() - began
                    how = outcome or _stopped(cancel_reason())
                    hear(number, self._result(call, how.status, how.text, elapsed))

                started(call)
                await attempt(work, ended=ended)

        try:
            async with anyio.create_task_group() as side_by_side:
                for number, call in enumerate(calls):
                    work = self._prepare(number, call, host or OutsideAnyConversation())
                    if isinstance(work, Work):
                        side_by_side.start_soon(run, number, call, work)
                        continue
                    if work.status != "skipped":
                        started(call)
                    hear(number, work)
        finally:
            for number in tuple(unheard):
                hear(number, self.skipped(calls[number], cancel_reason()))

    def skipped(self, call: ToolCallRequest, reason: str) -> ToolCallResult:
        return self._result(call, "skipped", reason, 0.0)

    def unknown(self, call: ToolCallRequest, reason: str) -> ToolCallResult:
        """Of a call that may have been run, and whose result nobody has: it may have
        done what it was to do, so it is not run again."""
        return self._result(call, "failed", f"outcome unknown: {reason}", 0.0)

    async def _permission(
        self, call: ToolCallRequest, tool: Tool, asker: Asker | None
    ) -> Permission:
        if policy_of(tool.description, self._policies) != "ask":
            return Permission(allowed=True)
        return await (asker or NobodyToAsk()).ask(call)

    def _prepare(self, number: int, call: ToolCallRequest, host: ToolHost) -> Work | ToolCallResult:
        """What is to be done, or why it is not."""
        if number >= self._calls_max:
            return self.skipped(call, f"not run: at most {self._calls_max} calls in one step")
        tool = self._tools().get(call.tool_name)
        if tool is None:
            name = call.tool_name[:_NAME_CHARACTERS_MAX]
            offered = [description.name for description in self.offer.descriptions]
            unknown = f"there is no tool {name!r}{did_you_mean(name, offered)}"
            return self._result(call, "failed", unknown, 0.0)
        why_not = refusal(tool.description, self._policies)
        if why_not is not None:
            return self.skipped(call, why_not)
        if call.arguments is None:
            unreadable = call.parse_error or "the arguments could not be read"
            return self._result(call, "failed", unreadable, 0.0)
        return Work(
            tool=tool, arguments=dict(call.arguments), host=host, seconds_max=self._seconds_max
        )

    def _result(
        self, call: ToolCallRequest, status: ToolStatus, text: str, elapsed: float
    ) -> ToolCallResult:
        return ToolCallResult(
            tool_call_id=call.tool_call_id,
            tool_name=call.tool_name,
            status=status,
            result=bounded(text),
            duration=round(elapsed, 6),
            timestamp=self._clock(),
        )


def _stopped(reason: str) -> Outcome:
    return Outcome(status="failed", text=f"stopped before it was done: {reason}")
