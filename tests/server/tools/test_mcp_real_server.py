"""A server made with the official SDK, over both kinds of line, as a process of its own.

The heaviest of our tests: the SDK takes a second to import, here and in the
server. So they share one, and none of them does it any harm.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.server.tools.mcp_house import McpHouse, mcp_house, real_server

from nplt_server.tools import ToolFailed
from nplt_server.tools.mcp import McpServerConfig

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOLS = ["add", "dawdle", "divide", "environment", "learn", "picture", "process_id"]
TOOLS += ["shout", "wait_for"]


class Both:
    """The same process, met over its standard streams (`pipe`) and by HTTP (`web`)."""

    def __init__(self, pipe: McpHouse, web: McpHouse) -> None:
        self.houses = {"pipe": pipe, "web": web}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Both]:
    port_file: Path = tmp_path_factory.mktemp("mcp") / "port"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "sk-canary")
        async with mcp_house(real_server("pipe", port_file)) as pipe:
            address = f"http://127.0.0.1:{port_file.read_text()}/mcp"
            async with mcp_house(McpServerConfig(name="web", url=address)) as web:
                yield Both(pipe, web)


@pytest.fixture(params=["pipe", "web"])
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_tools_of_an_mcp_server_are_listed_with_their_schemas(
    both: Both, server: str
) -> None:
    house = both.houses[server]
    assert [name for name in house.names if "__learned" not in name] == [
        f"{server}__{tool}" for tool in TOOLS
    ]
    add = house.tool(f"{server}__add").description
    assert add.description == "The sum of two numbers."
    assert add.parameters["required"] == ["a", "b"]
    assert house.server(server).error is None


async def test_a_call_to_an_mcp_tool_returns_its_result(both: Both, server: str) -> None:
    house = both.houses[server]
    assert await house.call(f"{server}__add", a=2, b=3) == "5"
    assert await house.call(f"{server}__shout", words=["one", "two"]) == "ONE\nTWO"
    assert await house.call(f"{server}__picture") == "[image/png, 1,234 bytes]"


async def test_a_failed_mcp_call_is_a_result_and_the_next_call_works(
    both: Both, server: str
) -> None:
    house = both.houses[server]
    with pytest.raises(ToolFailed, match="divide"):
        await house.call(f"{server}__divide", a=1, b=0)
    assert await house.call(f"{server}__divide", a=1, b=2) == "0.5"


async def test_invalid_arguments_of_an_mcp_call_are_reported(both: Both, server: str) -> None:
    with pytest.raises(ToolFailed, match="b\n"):
        await both.houses[server].call(f"{server}__add", a=1)


async def test_a_cancelled_call_is_cancelled_at_the_mcp_server(both: Both, server: str) -> None:
    house = both.houses[server]
    call = asyncio.create_task(house.call(f"{server}__dawdle", event=server))
    await house.call(f"{server}__wait_for", event=f"{server} begins")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    seen = await house.call(f"{server}__wait_for", event=f"{server} is cancelled")
    assert seen == f"{server} is cancelled"


async def test_a_tool_added_at_the_mcp_server_is_offered(both: Both, server: str) -> None:
    house = both.houses[server]
    tools = house.servers.tools
    await house.call(f"{server}__learn", name=f"learned_by_{server}")
    await house.until(lambda: f"{server}__learned_by_{server}" in house.names)
    assert house.servers.tools != tools
    assert await house.call(f"{server}__learned_by_{server}") == f"learned_by_{server}"


async def test_an_mcp_process_gets_its_own_environment_without_our_keys(
    both: Both,
) -> None:
    names = (await both.houses["pipe"].call("pipe__environment")).split("\n")
    assert {"PATH", "OF_ITS_OWN"} <= set(names)
    assert "OPENAI_API_KEY" in os.environ
    assert "OPENAI_API_KEY" not in names
