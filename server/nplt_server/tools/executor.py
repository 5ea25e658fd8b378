"""Runs the tool calls of one answer side by side, one result for each.

Whatever happens becomes a result the model can read. A tool call that was never begun is
`skipped`; one that was stopped half way has `failed`. Each run has a time limit, and results
have a size limit. A tool call that waits for approval holds up no other.

A tool runs in a task of its own. A tool that swallows its cancellation is abandoned after a
moment of grace. No exception of a tool gets out, not even SystemExit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from itertools import chain
from traceback import format_exception
from typing import Final, Literal

import anyio
from msgspec import Struct
from msgspec.structs import replace

from nplt_protocol import JsonObject
from nplt_server.digest.text import clean_text
from nplt_server.masking import NO_SECRETS, SecretMask
from nplt_server.tools import (
    ALL_TOOLS,
    NO_POLICIES,
    RESULT_BYTES_MAX,
    ResultWithPictures,
    Tool,
    ToolDescription,
    ToolFailed,
    ToolHost,
    ToolOffer,
    ToolPolicies,
    ToolPolicy,
    ToolRunner,
    ToolTurn,
    did_you_mean,
    offer_of,
    policy_of,
    run_tool,
)
from nplt_server.tools.mcp import McpServers
from nplt_storage.entries import ToolCallRequest, ToolCallResult, ToolExecutionStatus

log = logging.getLogger(__name__)
debug_log = logging.getLogger("nplt.tools")
"""The debug category `tools`."""

GRACE_SECONDS: Final = 1.0
"""The time a cancelled tool gets to clean up."""

_ERRORS_MAX: Final = 5
_MESSAGE_CHARACTERS_MAX: Final = 1_000
"""How much of an exception's message the result repeats."""

_left_behind: set[asyncio.Task[ToolOutcome]] = set()
"""The loop itself would forget them half way."""


class AllTools:
    """Our own first: a provider's cache begins with the tools, and ours never change.
    They are made when somebody first looks: a server that starts has other things to do."""

    def __init__(self, make: Callable[[], tuple[Tool, ...]], servers: McpServers | None) -> None:
        self._make = make
        self._servers = servers

    def __iter__(self) -> Iterator[Tool]:
        return chain(self.own, () if self._servers is None else self._servers.tools)

    @cached_property
    def own(self) -> tuple[Tool, ...]:
        return self._make()


class ToolOutcome(Struct, frozen=True, kw_only=True):
    status: Literal["success", "failed"]
    text: str
    attachments: tuple[str, ...] = ()


async def _run(
    runner: ToolRunner, tool: Tool, arguments: JsonObject, host: ToolHost, secrets: SecretMask
) -> ToolOutcome:
    name = tool.description.name
    try:
        text: object = await runner(tool, arguments, host)
    except asyncio.CancelledError:
        raise
    except ToolFailed as failure:
        return ToolOutcome(status="failed", text=str(failure))
    except BaseException as error:
        why = f"{name} failed: {_in_short(error, secrets)}"
        log.warning("tool %s", why)
        _log_stack(f"the stack of tool {name}:", error, secrets)
        return ToolOutcome(status="failed", text=why)
    if not isinstance(text, str):
        log.error("tool %s gave %s, not text", name, type(text).__name__)
        what = f"{name} gave {type(text).__name__} instead of text"
        return ToolOutcome(status="failed", text=what)
    pictures = text.attachments if isinstance(text, ResultWithPictures) else ()
    return ToolOutcome(status="success", text=str(text), attachments=pictures)


def _log_stack(message: str, error: BaseException, secrets: SecretMask) -> None:
    if debug_log.isEnabledFor(logging.DEBUG):
        stack = secrets.mask("".join(format_exception(error)))
        debug_log.debug("%s\n%s", message, stack.rstrip())


async def _dismiss(task: asyncio.Task[ToolOutcome]) -> None:
    task.cancel()
    with anyio.CancelScope(shield=True):
        await asyncio.wait({task}, timeout=GRACE_SECONDS)
    if not task.done():
        log.warning("%s does not let itself be cancelled and is left behind", task.get_name())
        _left_behind.add(task)
        task.add_done_callback(_left_behind.discard)


def _outcome(task: asyncio.Task[ToolOutcome], instead: str | None) -> ToolOutcome:
    """Returns the outcome of a tool. `instead` is the text for a tool that was dismissed, unless it
    had succeeded by then."""
    if instead is not None:
        if task.done() and not task.cancelled() and task.result().status == "success":
            return task.result()
        return ToolOutcome(status="failed", text=instead)
    if task.cancelled():
        return ToolOutcome(status="failed", text="the tool gave up: it cancelled itself")
    return task.result()


def _in_short(error: BaseException, secrets: SecretMask) -> str:
    """Class and message of the exception; of several that were raised together, of the first few.
    A message is masked before it is cut: half of a secret is not recognized."""
    found: dict[str, None] = {}
    waiting = [error]
    while waiting and len(found) < _ERRORS_MAX:
        match waiting.pop():
            case BaseExceptionGroup() as several:
                waiting += reversed(several.exceptions)
            case ToolFailed() as failure:
                found[str(failure)] = None
            case one:
                message = secrets.mask(_message_of(one))
                if len(message) > _MESSAGE_CHARACTERS_MAX:
                    message = f"{message[:_MESSAGE_CHARACTERS_MAX]}…"
                found[": ".join(filter(None, (type(one).__name__, message)))] = None
    return ", ".join(found)


def _message_of(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception:  # it is the tool's own class
        return ""


def bounded(text: str, *, bytes_max: int = RESULT_BYTES_MAX) -> str:
    """Returns text that can be stored. If it was cut, it begins with a note of that."""
    if len(text) * 4 <= bytes_max:  # no character takes more
        return clean_text(text)
    # Each takes at least a byte, so only the beginning is worth encoding.
    beginning = clean_text(text[: bytes_max + 1]).encode()
    if len(text) <= bytes_max and len(beginning) <= bytes_max:
        return clean_text(text)
    kept = beginning[:bytes_max].decode(errors="ignore")
    return f"[cut: the first {len(kept):,} of {len(text):,} characters]\n{kept}"


OFFERED_MAX: Final = 128
"""OpenAI refuses a request with more, and others choose badly among so many."""

_NAME_CHARACTERS_MAX: Final = 100
"""How much of an unknown tool's name the error repeats."""


class ToolExecutor:
    def __init__(  # noqa: PLR0913
        self,
        tools: Iterable[Tool],
        *,
        clock: Callable[[], datetime],
        policies: ToolPolicies = NO_POLICIES,
        seconds_max: float = 30.0,
        at_once_max: int = 4,
        calls_max: int = 8,
        secrets: SecretMask = NO_SECRETS,
        runner: ToolRunner = run_tool,
    ) -> None:
        """`tools` is iterated each time, because some tools come and go. `secrets` are masked in
        their results. `runner` runs each of them."""
        self._runner = runner
        self._secrets = secrets
        self._all = tools
        self._clock = clock
        self._offer = ToolOffer()
        self._offered_of: tuple[Tool, ...] = ()
        self._policies = policies
        self._seconds_max = seconds_max
        self._at_once_max = at_once_max
        self._calls_max = calls_max

    @property
    def offer(self) -> ToolOffer:
        """The tools that a model is offered, always in the same order."""
        tools = tuple(self._all)
        if tools != self._offered_of:
            allowed = tuple(tool for tool, policy in self.every if policy != "deny")
            if allowed[:OFFERED_MAX] != self._offer.descriptions:
                self._offer = offer_of(allowed[:OFFERED_MAX])
            if len(allowed) > OFFERED_MAX:
                log.warning("of %d tools the first %d are offered", len(allowed), OFFERED_MAX)
            self._offered_of = tools
        return self._offer

    @property
    def every(self) -> tuple[tuple[ToolDescription, ToolPolicy], ...]:
        """All tools there are now, also those that are not offered."""
        descriptions = (tool.description for tool in self._tools().values())
        return tuple((one, policy_of(one, self._policies)) for one in descriptions)

    def denies_server(self, name: str) -> bool:
        """Whether nothing of that MCP server may be used."""
        return self._policies.get(f"{name}__", self._policies.get(ALL_TOOLS)) == "deny"

    def _tools(self) -> Mapping[str, Tool]:
        tools: dict[str, Tool] = {}
        for tool in self._all:
            tools.setdefault(tool.description.name, tool)  # a later one takes no one's place
        return tools

    async def run_all(self, tool_calls: tuple[ToolCallRequest, ...], turn: ToolTurn) -> None:
        """Gives the turn one result for each tool call, as they end. If this is cancelled, the
        turn gets the results that are missing before the cancellation goes on."""
        places, seconds_max = anyio.CapacityLimiter(self._at_once_max), self._seconds_max
        without_result = dict(enumerate(tool_calls))

        def finish(number: int, result: ToolCallResult) -> None:
            del without_result[number]
            turn.tool_finished(result)

        async def run(number: int, tool_call: ToolCallRequest, tool: Tool) -> None:
            if (why_not := turn.why_denied(tool_call.tool_name)) is not None:
                finish(number, self.skipped(tool_call, why_not))
                return
            must_ask = policy_of(tool.description, self._policies) == "ask"
            if must_ask and (why_not := await turn.ask(tool_call)) is not None:
                finish(number, self.skipped(tool_call, why_not))
                return
            async with places:
                if (why_not := await turn.why_not_now()) is not None:
                    finish(number, self.skipped(tool_call, why_not))
                    return
                began = anyio.current_time()
                turn.tool_started(tool_call)
                arguments = dict(tool_call.arguments or {})
                work = _run(self._runner, tool, arguments, turn.tool_host, self._secrets)
                task = asyncio.create_task(work, name=f"tool {tool_call.tool_name}")
                instead: str | None = None
                try:
                    await asyncio.wait({task}, timeout=None if tool.keeps_time else seconds_max)
                    if not task.done():
                        instead = f"{tool_call.tool_name} did not finish within {seconds_max:g} s"
                        await _dismiss(task)
                except asyncio.CancelledError:
                    instead = f"stopped before it was done: {turn.why_stopped()}"
                    await _dismiss(task)
                    raise
                finally:
                    how, elapsed = _outcome(task, instead), anyio.current_time() - began
                    result = self._result(tool_call, how.status, how.text, elapsed)
                    finish(number, replace(result, attachments=how.attachments))

        try:
            async with anyio.create_task_group() as side_by_side:
                for number, tool_call in enumerate(tool_calls):
                    tool = self._tool_for(number, tool_call)
                    if isinstance(tool, Tool):
                        side_by_side.start_soon(run, number, tool_call, tool)
                        continue
                    if tool.status != "skipped":
                        turn.tool_started(tool_call)
                    finish(number, tool)
        finally:
            for number in tuple(without_result):
                finish(number, self.skipped(tool_calls[number], turn.why_stopped()))

    def skipped(self, call: ToolCallRequest, reason: str) -> ToolCallResult:
        return self._result(call, "skipped", reason, 0.0)

    def pending(self, call: ToolCallRequest) -> ToolCallResult:
        """Stands for the result that the client has yet to bring."""
        return self._result(call, "pending", "", 0.0)

    def brought(
        self, call: ToolCallRequest, status: ToolExecutionStatus, text: str
    ) -> ToolCallResult:
        """The result of a call that the client has run."""
        return self._result(call, status, text, 0.0)

    def unknown(self, call: ToolCallRequest, reason: str) -> ToolCallResult:
        """The result of a call that may have run and whose own result is lost. It may have had its
        effect, so it is not run again."""
        return self._result(call, "failed", f"outcome unknown: {reason}", 0.0)

    def _tool_for(self, number: int, call: ToolCallRequest) -> Tool | ToolCallResult:
        """Returns the tool to run, or the result of a call that is not run."""
        if number >= self._calls_max:
            return self.skipped(call, f"not run: at most {self._calls_max} calls in one step")
        tool = self._tools().get(call.tool_name)
        if tool is None:
            name = call.tool_name[:_NAME_CHARACTERS_MAX]
            offered = [description.name for description in self.offer.descriptions]
            unknown = f"there is no tool {name!r}{did_you_mean(name, offered)}"
            return self._result(call, "failed", unknown, 0.0)
        policy = policy_of(tool.description, self._policies)
        if policy == "deny":
            denied = f"not run: {call.tool_name} is denied by the server's settings"
            return self.skipped(call, denied)
        if call.arguments is None:
            unreadable = call.parse_error or "the arguments could not be read"
            return self._result(call, "failed", unreadable, 0.0)
        if policy == "ask" and (mistake := tool.mistake_in(dict(call.arguments))) is not None:
            return self._result(call, "failed", mistake, 0.0)
        return tool

    def _result(
        self, call: ToolCallRequest, status: ToolExecutionStatus, text: str, elapsed: float
    ) -> ToolCallResult:
        return ToolCallResult(
            tool_call_id=call.tool_call_id,
            tool_name=call.tool_name,
            status=status,
            result=bounded(self._secrets.mask(text)),
            duration=round(elapsed, 6),
            timestamp=self._clock(),
        )
