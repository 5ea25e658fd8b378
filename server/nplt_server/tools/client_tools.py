"""Tools that a client offers with a prompt and runs itself.

The model is offered them beside the server's tools, or instead of these. A call of one ends the
turn. The client runs the tool and brings the result with its next prompt; any other prompt is
preceded by a result that says that the tool was not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from nplt_protocol.codec import dump_json
from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.messages import OfferedTool, ToolResult
from nplt_server.tools import ToolDescription, ToolOffer, offer_of
from nplt_server.tools.executor import ToolExecutor
from nplt_storage.entries import (
    ClientTool,
    ModelInputEntry,
    ModelOutputEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.turns import Turn

TOOLS_MAX: Final = 128
TOOLS_BYTES_MAX: Final = 256 * 1024
"""The limits of the tools that come with one prompt; vendors take no more of them."""

NOT_RUN: Final = "not run: the conversation went on without its result"
_NAME_CHARACTERS_MAX: Final = 100
_NO_RESULT: Final = "not run: the client gave no result for this call"


def stored_tools(tools: Sequence[OfferedTool]) -> tuple[ClientTool, ...]:
    """The tools as they are stored with the prompt. Raises an error for tools that no model could
    be offered."""
    names = [tool.name for tool in tools]
    if len(tools) > TOOLS_MAX:
        raise _refusal(ErrorCode.TOO_LARGE, f"a prompt offers at most {TOOLS_MAX} tools")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise _refusal(ErrorCode.MALFORMED, f"two tools are called {twice!r}")
    size = sum(len(dump_json(dict(tool.parameters))) + len(tool.description) for tool in tools)
    if size > TOOLS_BYTES_MAX:
        raise _refusal(
            ErrorCode.TOO_LARGE, f"the tools of a prompt have at most {TOOLS_BYTES_MAX:,} bytes"
        )
    return tuple(
        ClientTool(name=tool.name, description=tool.description, parameters=tool.parameters)
        for tool in tools
    )


def _refusal(code: ErrorCode, message: str) -> RequestError:
    return RequestError(code, message, field="tools")


def offer_for(prompt: ModelInputEntry, own: ToolOffer) -> ToolOffer:
    """The tools that a model is offered for the prompt. A tool of the client takes the place of a
    tool of the server with the same name. `own`: the tools of the server."""
    offered = () if prompt.offer == "client" else own.descriptions
    if prompt.offer == "server" or not prompt.tools:
        return own if offered else ToolOffer()
    names = {tool.name for tool in prompt.tools}
    return offer_of(
        (
            *(each for each in offered if each.name not in names),
            *(_described(tool) for tool in prompt.tools),
        )
    )


def _described(tool: ClientTool) -> ToolDescription:
    parameters = dict(tool.parameters) or {"type": "object", "properties": {}}
    return ToolDescription(name=tool.name, description=tool.description, parameters=parameters)


def marked(output: ModelOutputEntry, prompt: ModelInputEntry) -> ModelOutputEntry:
    """The output with a mark on each call of a tool that the client runs."""
    if prompt.offer == "server":
        return output
    names = {tool.name for tool in prompt.tools}
    calls = tuple(
        replace(call, by_client=True) if call.tool_name in names else call
        for call in output.tool_calls
    )
    return replace(output, tool_calls=calls)


def results_brought(
    turn: Turn, brought: Sequence[ToolResult], tools: ToolExecutor
) -> tuple[ToolCallResult, ...]:
    """The results of all calls of the turn's last output, with those that the client brings. Those
    of the server's own tools are in the record. A call for which it brings none was not run."""
    by_id = {result.tool_call_id: result for result in reversed(brought)}
    known = {call.tool_call_id for call in turn.open_tool_calls if call.by_client}
    unknown = next((call_id for call_id in by_id if call_id not in known), None)
    if unknown is not None:
        raise RequestError(
            ErrorCode.CONFLICT,
            f"no call {unknown[:_NAME_CHARACTERS_MAX]!r} waits for a result; another prompt may "
            "have come before it",
            field="results",
        )

    def result_of(call: ToolCallRequest) -> ToolCallResult:
        result = by_id.get(call.tool_call_id)
        if result is None:
            return tools.skipped(call, _NO_RESULT)
        return tools.brought(call, result.status, result.result)

    return _all_results(turn, result_of)


def _all_results(
    turn: Turn, result_of: Callable[[ToolCallRequest], ToolCallResult]
) -> tuple[ToolCallResult, ...]:
    last = turn.entries[-1]
    results = last.results if isinstance(last, ToolResultsEntry) else ()
    own = {each.tool_call_id: each for each in results if each.status != "pending"}
    return tuple(own.get(call.tool_call_id) or result_of(call) for call in turn.open_tool_calls)


def results_skipped(turn: Turn, tools: ToolExecutor) -> tuple[ToolCallResult, ...]:
    """The same when the conversation goes on without its client's results."""
    return _all_results(turn, lambda call: tools.skipped(call, NOT_RUN))
