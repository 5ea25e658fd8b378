"""Typed functions become tools: what the schema allows is accepted, the rest is explained."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field
from tests.support.tool_hosts import NoConversationHost

from nplt_protocol import JsonObject
from nplt_server.tools import Tool, ToolFailed, ToolHost
from nplt_server.tools.builtin import builtin_tools
from nplt_server.tools.typed import typed_tool

OUTSIDE = NoConversationHost()


class Unit(Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    title: str
    height: Annotated[float, Field(ge=-500, le=9_000)] = 0.0
    near: list[Place] = []


async def weather(
    city: Annotated[str, Field(description="e.g. Lyon", max_length=20)],
    host: ToolHost,
    metric: Literal["wind", "rain", "all"] = "all",
    days: Annotated[int, Field(ge=1, le=7)] = 1,
    unit: Unit = Unit.CELSIUS,
    place: Place | None = None,
    schema: list[int] | None = None,
    sure: bool = True,
) -> object:
    """The weather of
    the next days.

    Nothing that a model has to read.
    """
    return {"city": city, "metric": metric, "days": days, "unit": unit, "sure": sure}


WEATHER = typed_tool(weather, tool_class="network")


def run(tool: Tool, arguments: JsonObject) -> str:
    async def run() -> str:
        return await tool.run(arguments, OUTSIDE)

    return asyncio.run(run())


def mistakes(tool: Tool, arguments: JsonObject) -> list[str]:
    with pytest.raises(ToolFailed) as failed:
        run(tool, arguments)
    return str(failed.value).splitlines()


def made_from(schema: dict[str, Any], root: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values as a model would write them that has read the schema."""
    match schema:
        case {"$ref": str(name)}:
            return st.deferred(lambda: made_from(root["$defs"][name.rpartition("/")[2]], root))
        case {"enum": list(values)}:
            return st.sampled_from(values)
        case {"anyOf": list(several)}:
            return st.one_of([made_from(one, root) for one in several])
        case {"type": "null"}:
            return st.none()
        case {"type": "boolean"}:
            return st.booleans()
        case {"type": "string"}:
            return st.text(min_size=schema.get("minLength", 0), max_size=schema.get("maxLength"))
        case {"type": "integer"}:
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case {"type": "number"}:
            return st.floats(
                schema.get("minimum"),
                schema.get("maximum"),
                allow_nan=False,
                allow_infinity=False,
            )
        case {"type": "array"}:
            return st.lists(made_from(schema["items"], root), max_size=2)
        case {"type": "object", "additionalProperties": False}:
            made = {name: made_from(one, root) for name, one in schema["properties"].items()}
            required = {name: made.pop(name) for name in schema.get("required", ())}
            return st.fixed_dictionaries(required, optional=made)
        case _:
            raise AssertionError(f"nothing is known of {schema}")


def asked_with(tool: Tool) -> st.SearchStrategy[JsonObject]:
    return made_from(tool.description.parameters, tool.description.parameters)


@given(asked_with(WEATHER))
def test_arguments_made_from_the_schema_are_accepted(arguments: JsonObject) -> None:
    result = json.loads(run(WEATHER, arguments))
    assert result["city"] == arguments["city"]
    assert result["days"] == arguments.get("days", 1)


BUILT_IN = builtin_tools(lambda: datetime(2026, 1, 1, tzinfo=UTC), [Path("/nowhere")])
QUICK = [tool for tool in BUILT_IN if tool.description.name != "sys_monitor"]


@given(st.sampled_from(QUICK).flatmap(lambda tool: st.tuples(st.just(tool), asked_with(tool))))
def test_built_in_tools_accept_what_their_schemas_allow(asked: tuple[Tool, JsonObject]) -> None:
    tool, arguments = asked
    try:
        result = run(tool, arguments)
    except ToolFailed as failed:  # there is no such result, no such file
        result = str(failed)
    assert "; you gave" not in result
    assert "is missing" not in result


def test_the_schema_is_all_that_a_model_has_to_know() -> None:
    description = WEATHER.description
    assert description.name == "weather"
    assert description.description == "The weather of the next days."
    assert description.tool_class == "network"
    parameters: Any = description.parameters
    assert parameters["additionalProperties"] is False
    assert parameters["required"] == ["city"]
    assert "host" not in parameters["properties"]
    assert parameters["properties"]["city"] == {
        "description": "e.g. Lyon",
        "maxLength": 20,
        "type": "string",
    }


def test_titles_cost_tokens_and_are_left_out_but_a_parameter_may_be_called_so() -> None:
    def odd(default: int, title: dict[str, str] = {"title": "kept"}) -> None:  # noqa: B006
        """Does nothing."""

    parameters: Any = typed_tool(odd).description.parameters
    assert "title" not in parameters
    assert parameters["properties"] == {
        "default": {"type": "integer"},
        "title": {
            "additionalProperties": {"type": "string"},
            "default": {"title": "kept"},
            "type": "object",
        },
    }


def test_a_number_in_quotes_is_read_as_the_number_that_is_meant() -> None:
    assert json.loads(run(WEATHER, {"city": "Lyon", "days": "5"}))["days"] == 5


def test_a_number_is_not_read_as_text() -> None:
    assert mistakes(WEATHER, {"city": 69_000}) == ["city: must be a valid string; you gave 69000"]


def test_every_mistake_has_a_line() -> None:
    assert mistakes(
        WEATHER,
        {
            "citty": "Lyon",
            "metric": "snow",
            "days": 9,
            "unit": "kelvin",
            "place": {"height": "high"},
            "schema": [1, "x", {}],
            "sure": None,
        },
    ) == [
        "city: is missing",
        "metric: must be one of wind, rain, all; you gave 'snow'",
        "days: must be less than or equal to 7; you gave 9",
        "unit: must be one of celsius, fahrenheit; you gave 'kelvin'",
        "place.title: is missing",
        "place.height: must be a valid number; you gave 'high'",
        "schema[1]: must be a valid integer; you gave 'x'",
        "schema[2]: must be a valid integer; you gave an object",
        "sure: must be a valid boolean; you gave null",
        "citty: there is no such parameter; did you mean city?",
    ]


def test_many_mistakes_are_counted_and_the_input_is_never_given_back_whole() -> None:
    wrong: JsonObject = {"city": "x" * 100_000, "schema": [*["y" * 100_000] * 50], "place": "z"}
    lines = mistakes(WEATHER, wrong)
    assert lines[-1] == "and 42 more mistakes"
    assert sum(map(len, lines)) < 1_500
    assert not any("http" in line for line in lines)


def test_what_is_not_finite_is_no_number() -> None:
    def half(of: float) -> float:
        """Half of it."""
        return of / 2

    tool = typed_tool(half)
    assert run(tool, {"of": 5}) == "2.5"
    assert mistakes(tool, {"of": "nan"}) == ["of: must be a finite number; you gave 'nan'"]


def test_a_function_that_is_not_async_runs_in_a_thread() -> None:
    def where() -> str:
        """Which thread this is."""
        return threading.current_thread().name

    assert run(typed_tool(where), {}) == "tool"
    assert typed_tool(where).description.parameters["additionalProperties"] is False


def test_names_that_pydantic_keeps_for_itself_are_fair_names() -> None:
    def odd(copy: int, model_config: int, _hidden: int = 3) -> int:
        """Adds."""
        return copy + model_config + _hidden

    assert run(typed_tool(odd, name="add"), {"copy": 1, "model_config": 2, "_hidden": 4}) == "7"


def test_a_function_that_can_be_no_tool_is_refused_when_it_is_made() -> None:
    def wordless(x: int) -> int:
        return x

    def greedy(*x: int) -> int:
        """Takes all."""
        return sum(x)

    def untyped(x) -> int:  # type: ignore[no-untyped-def]
        """Takes anything."""
        return 0

    def in_a_thread(host: ToolHost) -> str:
        """Asks from afar."""
        return host.notebook

    for function in (wordless, greedy, untyped, in_a_thread):
        with pytest.raises(TypeError):
            typed_tool(function)
