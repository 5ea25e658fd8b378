"""May the model run this tool? By name in the settings, else by class."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace
from tests.support.tool_hosts import RecordingTurn

from nplt_protocol import JsonObject
from nplt_server.tools import (
    Tool,
    ToolClass,
    ToolDescription,
    ToolHost,
    ToolPolicy,
    policy_of,
    unknown_tools,
)
from nplt_server.tools.executor import ToolExecutor
from nplt_server.tools.typed import typed_tool
from nplt_storage.entries import ToolCallRequest, ToolCallResult


def description(name: str, tool_class: ToolClass) -> ToolDescription:
    return ToolDescription(name=name, description="", parameters={}, tool_class=tool_class)


async def give(arguments: JsonObject, host: ToolHost) -> str:
    return "it ran"


TOOLS = [
    Tool(description=description("look", "read"), run=give),
    Tool(description=description("change", "write"), run=give),
    Tool(description=description("fetch", "network"), run=give),
]


async def run(name: str, policies: dict[str, ToolPolicy]) -> ToolCallResult:
    runner = ToolExecutor(TOOLS, clock=lambda: datetime(2026, 1, 1, tzinfo=UTC), policies=policies)
    call = ToolCallRequest(tool_call_id="a", tool_name=name, raw_arguments="{}", arguments={})
    turn = RecordingTurn()
    await runner.run_all((call,), turn)
    (result,) = turn.results
    assert bool(turn.started) == (result.status == "success")
    return result


@pytest.mark.parametrize(
    ("tool_class", "policy"), [("read", "allow"), ("write", "ask"), ("network", "ask")]
)
def test_the_default_policy_allows_only_tools_that_read(
    tool_class: ToolClass, policy: ToolPolicy
) -> None:
    assert policy_of(description("it", tool_class), {"other": "deny"}) == policy


async def test_a_tool_with_the_policy_allow_runs() -> None:
    assert (await run("change", {"change": "allow"})).result == "it ran"


async def test_a_tool_with_the_policy_ask_is_skipped_without_an_approval() -> None:
    result = await run("fetch", {})
    assert (result.status, result.result) == ("skipped", "nobody allows fetch")


async def test_nobody_is_asked_about_a_call_whose_arguments_are_wrong() -> None:
    async def send(to: str, copies: int = 1) -> str:
        """Sends it."""
        return "sent"

    asked: list[str] = []

    class AskingTurn(RecordingTurn):
        async def ask(self, tool_call: ToolCallRequest) -> str | None:
            asked.append(tool_call.tool_call_id)
            return None

    runner = ToolExecutor(
        [typed_tool(send, tool_class="network")], clock=lambda: datetime(2026, 1, 1, tzinfo=UTC)
    )
    turn = AskingTurn()
    call = ToolCallRequest(
        tool_call_id="wrong", tool_name="send", raw_arguments="", arguments={"copies": "many"}
    )
    right = replace(call, tool_call_id="right", arguments={"to": "ada"})
    await runner.run_all((call, right), turn)
    assert asked == ["right"]
    results = {result.tool_call_id: result.result for result in turn.results}
    assert results["right"] == "sent"
    assert "to: is missing" in results["wrong"]


async def test_a_tool_with_the_policy_deny_is_skipped_even_if_it_only_reads() -> None:
    result = await run("look", {"look": "deny"})
    assert (result.status, result.result) == (
        "skipped",
        "not run: look is denied by the server's settings",
    )


def test_tools_with_the_policy_ask_are_offered_and_with_deny_are_not() -> None:
    runner = ToolExecutor(
        TOOLS, clock=lambda: datetime(2026, 1, 1, tzinfo=UTC), policies={"look": "deny"}
    )
    assert [offered.name for offered in runner.offer.descriptions] == ["change", "fetch"]
    assert [tool.name for tool, _ in runner.every] == ["look", "change", "fetch"]


def test_unknown_names_in_tool_policies_are_reported_with_the_nearest_one() -> None:
    assert unknown_tools({"fetsh": "deny", "look": "allow", "zzz": "ask"}, ["look", "fetch"]) == [
        "tools: there is no tool 'fetsh'; did you mean fetch?",
        "tools: there is no tool 'zzz'",
    ]
