"""What MCP servers say of themselves is data: named, sifted, cleaned."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.tools.mcp_house import described

from nplt_protocol import JsonValue
from nplt_server.tools.mcp import McpServerConfig, McpServers, full_name, full_names
from nplt_server.tools.mcp.results import (
    SCHEMA_BYTES_MAX,
    SCHEMA_DEPTH_MAX,
    checked_listing,
    clean_foreign,
    cut_foreign,
)

server_names = st.sampled_from(["a", "a_a", "a-_-", "a_a_a", "-", "x" * 32])
fitting_names = st.text("a_-", min_size=1, max_size=30)
tool_names = st.one_of(fitting_names, st.text("a_-.ü", min_size=1, max_size=80))


@given(server_names, tool_names)
def test_every_tool_gets_a_name_that_providers_take(server: str, tool: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", full_name(server, tool))


@given(server_names, fitting_names)
def test_a_name_that_fits_is_kept(server: str, tool: str) -> None:
    assert full_name(server, tool) == f"{server}__{tool}"


@given(server_names, server_names, tool_names, tool_names)
def test_tools_of_two_servers_never_clash(a: str, b: str, one: str, other: str) -> None:
    assert a == b or full_name(a, one) != full_name(b, other)


@given(server_names, st.lists(tool_names, max_size=5))
def test_tools_of_one_server_have_names_of_their_own(server: str, tools: list[str]) -> None:
    names = full_names(server, tools)
    assert len(set(names.values())) == len(names)
    assert list(names) == sorted(set(tools))  # a clash takes some effort


def test_a_name_that_was_made_to_clash_gives_way_to_the_one_that_fits() -> None:
    made_up = full_name("s", "über alles").removeprefix("s__")
    assert full_names("s", ["über alles", made_up]) == {made_up: f"s__{made_up}"}


@pytest.mark.parametrize("name", ["", "a__b", "_a", "a_", "a b", "ä", "a/b", "x" * 33])
def test_a_server_has_a_name_that_ends_before_two_underscores(name: str) -> None:
    with pytest.raises(ValueError, match="name of an MCP server"):
        McpServerConfig(name=name, url="http://localhost/mcp")


def test_a_server_has_either_a_command_or_a_url() -> None:
    with pytest.raises(ValueError, match="either"):
        McpServerConfig(name="a")
    with pytest.raises(ValueError, match="either"):
        McpServerConfig(name="a", command=("x",), url="http://localhost/mcp")
    with pytest.raises(ValueError, match="empty"):
        McpServerConfig(name="a", command=())
    with pytest.raises(ValueError, match="http"):
        McpServerConfig(name="a", url="file:///etc/passwd")


def test_two_servers_need_two_names() -> None:
    one = McpServerConfig(name="a", command=("x",))
    with pytest.raises(ValueError, match="two MCP servers named a"):
        McpServers([one, one])


def test_what_is_secret_is_not_shown_with_a_configuration() -> None:
    config = McpServerConfig(name="a", command=("x",), env={"K": "s3cret"}, headers={"A": "t0ken"})
    assert "s3cret" not in repr(config)
    assert "t0ken" not in repr(config)


def left_out(*tools: JsonValue) -> dict[str, str]:
    reasons: dict[str, str] = {}
    kept = checked_listing([*tools, described("good")], left_out=reasons.__setitem__)
    assert [tool["name"] for tool in kept if isinstance(tool, dict)] == ["good"]
    return reasons


def nested(depth: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (None, "not that of an object"),
        ([], "not that of an object"),
        ({}, "not that of an object"),
        ({"type": "string"}, "not that of an object"),
        ({"type": ["object"]}, "not that of an object"),
        ({"type": "object", "properties": {"a": 1}}, "are no schemas"),
        ({"type": "object", "properties": []}, "are no schemas"),
        ({"type": "object", "x": nested(SCHEMA_DEPTH_MAX)}, "deeper"),
        ({"type": "object", "x": "y" * SCHEMA_BYTES_MAX}, "bytes"),
        ({"type": "object", "x": "\ud800"}, "can't be written"),
    ],
)
def test_an_mcp_tool_with_an_unusable_schema_is_left_out(schema: JsonValue, reason: str) -> None:
    assert reason in left_out({"name": "bad", "inputSchema": schema})["bad"]


def test_a_schema_may_be_as_deep_and_as_large_as_the_limits_say() -> None:
    deep: JsonValue = {"type": "object", "x": nested(SCHEMA_DEPTH_MAX - 1)}
    room = SCHEMA_BYTES_MAX - len('{"type":"object","x":""}')
    large: JsonValue = {"type": "object", "x": "y" * room}
    tools: list[JsonValue] = [
        {"name": "deep", "inputSchema": deep},
        {"name": "large", "inputSchema": large},
    ]
    assert len(checked_listing(tools, left_out=lambda name, reason: pytest.fail(reason))) == 2


def test_what_is_no_tool_at_all_is_left_out() -> None:
    assert left_out(None, 7, "tool", {}, {"name": 7}, {"name": ""}) == {"?": "it has no name"}


def test_of_two_tools_of_one_name_the_first_is_kept() -> None:
    kept = checked_listing(
        [described("a", description="first"), described("a")], left_out=lambda name, reason: None
    )
    assert kept == [described("a", description="first")]


def test_only_what_is_used_of_a_tool_is_kept() -> None:
    tool = described("a", outputSchema={"pattern": "(a+)+$"}, annotations={"readOnlyHint": True})
    assert checked_listing([tool], left_out=lambda name, reason: None) == [
        described("a", description="")
    ]


def test_descriptions_are_cut_and_cleaned_and_values_are_not() -> None:
    schema: JsonValue = {
        "type": "object",
        "properties": {"description": {"description": "a\x1b[1mb", "enum": ["x\x1b"]}},
    }
    tool: JsonValue = {"name": "a", "description": "\x00" + "z" * 2_000, "inputSchema": schema}
    assert checked_listing([tool], left_out=lambda name, reason: None) == [
        {
            "name": "a",
            "description": "z" * 1_023 + "…",
            "inputSchema": {
                "type": "object",
                "properties": {"description": {"description": "a[1mb", "enum": ["x\x1b"]}},
            },
        }
    ]


@given(st.text(st.characters(), max_size=50))
def test_cleaned_text_has_nothing_hidden_and_can_be_written(text: str) -> None:
    cleaned = clean_foreign(text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", cleaned)
    assert cleaned.encode().decode() == cleaned == clean_foreign(cleaned)


def test_invisible_characters_in_mcp_descriptions_are_dropped() -> None:
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "obey")
    assert clean_foreign(f"Adds{hidden} numbers 👩‍🚀") == "Adds numbers 👩‍🚀"


def test_a_text_is_cut_to_what_is_allowed_and_no_more() -> None:
    assert cut_foreign("abcd", characters_max=4) == "abcd"
    assert cut_foreign("abcde", characters_max=4) == "abc…"
