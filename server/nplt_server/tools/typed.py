"""A typed function becomes a tool: its signature the schema, its docstring the words.

    async def weather(
        city: Annotated[str, Field(description="e.g. Lyon")],
        days: Annotated[int, Field(ge=1, le=7)] = 1,
    ) -> str:
        \"\"\"The weather of the next days.\"\"\"

A parameter of type `ToolHost` is handed in and no model hears of it. A function
that is not async runs in a thread. What is no text is given back as JSON.

Arguments are read as models write them: "5" is taken for 5, for nothing else can
be meant; 5 is not taken for "5", for a number has lost how it was written. What
can't be read is told in a line for each mistake.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import to_json

from nplt_protocol.json_values import JsonObject
from nplt_server.tools.base import Tool, ToolClass, ToolDescription, ToolFailed, ToolHost
from nplt_server.tools.mistakes import mistakes
from nplt_server.tools.schemas import schema_of
from nplt_server.tools.threads import run_in_thread


def typed_tool(
    function: Callable[..., object], *, tool_class: ToolClass = "read", name: str | None = None
) -> Tool:
    signature = _read_signature(function)
    name = name or function.__name__
    description = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
    if not description:
        raise TypeError(f"{name} has no docstring for a model to read")

    async def run(arguments: JsonObject, host: ToolHost) -> str:
        given = signature.read(arguments, host)
        if inspect.iscoroutinefunction(function):
            value = await function(**given)
        else:
            value = await run_in_thread(partial(function, **given))
        return value if isinstance(value, str) else to_json(value, inf_nan_mode="strings").decode()

    return Tool(
        description=ToolDescription(
            name=name,
            description=" ".join(description.split()),
            parameters=schema_of(signature.model),
            tool_class=tool_class,
        ),
        run=run,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signature:
    model: type[BaseModel]
    names: tuple[str, ...]
    """Of the parameters that a model gives, in the order of the fields."""
    host_name: str | None

    def read(self, arguments: JsonObject, host: ToolHost) -> dict[str, object]:
        try:
            read = self.model.model_validate(arguments)
        except ValidationError as error:
            raise ToolFailed("\n".join(mistakes(error, self.names))) from None
        given = {
            name: getattr(read, _field(number))
            for number, name in enumerate(self.names)
            if _field(number) in read.model_fields_set
        }
        return given if self.host_name is None else {**given, self.host_name: host}


def _read_signature(function: Callable[..., object]) -> _Signature:
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    names: list[str] = []
    host_name: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{function.__name__}: a model can't give {parameter}")
        if parameter.name not in hints:
            raise TypeError(f"{function.__name__}: {parameter.name} has no type")
        if hints[parameter.name] is ToolHost:
            host_name = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        # A name of our own, for pydantic keeps some for itself (`schema`, `copy`, `_x`).
        fields[_field(len(names))] = (
            Annotated[hints[parameter.name], Field(alias=parameter.name)],
            default,
        )
        names.append(parameter.name)
    if host_name is not None and not inspect.iscoroutinefunction(function):
        raise TypeError(f"{function.__name__} is not async: from a thread no host can be asked")
    config = ConfigDict(extra="forbid", allow_inf_nan=False)
    model = create_model("Arguments", __config__=config, **fields)
    return _Signature(model=model, names=tuple(names), host_name=host_name)


def _field(number: int) -> str:
    return f"argument_{number}"
