"""Turns a typed Python function into a tool.

The signature becomes the JSON Schema, the docstring the description:

    async def weather(
        city: Annotated[str, Field(description="e.g. Lyon")],
        days: Annotated[int, Field(ge=1, le=7)] = 1,
    ) -> str:
        '''The weather of the next days.'''

A parameter of type `ToolHost` is injected and not part of the schema. A function that is
not `async` runs in a daemon thread, which can be left behind. A result that is not text
is returned as JSON.

Arguments are read as models write them: "5" is taken for 5, but 5 is not taken for "5",
since a number has lost how it was written. Each mistake is one line a model can act on.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Annotated, Any, Final, TypeVar, cast, get_type_hints

import anyio
from anyio.lowlevel import RunVar
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails, to_json

from nplt_protocol import JsonObject
from nplt_server.tools import Tool, ToolClass, ToolDescription, ToolFailed, ToolHost, did_you_mean

_SCHEMAS_BY_NAME: Final = ("properties", "patternProperties", "$defs")
_VALUES: Final = ("default", "const", "enum", "examples")


def _without_titles(schema: Any) -> Any:
    """Titles repeat the names, and every call of a model would pay for them."""
    match schema:
        case list():
            return [_without_titles(item) for item in schema]
        case dict():
            return {
                key: value
                if key in _VALUES
                else {name: _without_titles(each) for name, each in value.items()}
                if key in _SCHEMAS_BY_NAME
                else _without_titles(value)
                for key, value in schema.items()
                if not (key == "title" and isinstance(value, str))
            }
        case _:
            return schema


# ------------------------------------------------------------------------------
# Mistakes in arguments, one line each
#
#     metric: must be one of cpu, memory, disk, all; you gave 'gpu'
#     citty: there is no such parameter; did you mean city?
#
# A line names the place, the rule and the beginning of what was given.

_LINES_MAX: Final = 10
_GIVEN_CHARACTERS_MAX: Final = 40
_PLACE_CHARACTERS_MAX: Final = 80
_DETAILS = re.compile(r", (?:unable|got|input) .*", re.DOTALL)


def mistakes(error: ValidationError, names: Collection[str]) -> list[str]:
    found = error.errors(include_url=False)
    lines = [_line(one, names) for one in found[:_LINES_MAX]]
    more = len(found) - len(lines)
    return [*lines, f"and {more} more mistakes"] if more else lines


def _line(found: ErrorDetails, names: Collection[str]) -> str:
    loc = found["loc"]
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc)
    place = "".join(steps).removeprefix(".")[:_PLACE_CHARACTERS_MAX]
    match found["type"]:
        case "missing":
            return f"{place}: is missing"
        case "extra_forbidden":
            near = did_you_mean(str(loc[0]), names) if len(loc) == 1 else ""
            return f"{place}: there is no such parameter{near}"
        case _:
            return f"{place}: {_rule(found)}; you gave {_in_short(found['input'])}"


def _rule(found: ErrorDetails) -> str:
    if found["type"] in ("literal_error", "enum"):
        expected = str(found.get("ctx", {}).get("expected", ""))
        return "must be one of " + expected.replace("' or '", "', '").replace("'", "")
    if found["type"] in ("model_type", "dict_type", "dataclass_type"):
        return "must be an object"
    message = _DETAILS.sub("", found["msg"])
    message = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = re.sub("^Input should be", "must be", message)
    return message[:1].lower() + message[1:]


def _in_short(given: object) -> str:
    match given:
        case None:
            return "null"
        case bool():
            return str(given).lower()
        case str() if len(given) > _GIVEN_CHARACTERS_MAX:
            return repr(given[:_GIVEN_CHARACTERS_MAX]) + "…"
        case str() | int() | float():
            return repr(given)
        case list():
            return "a list"
        case _:
            return "an object"


# ------------------------------------------------------------------------------
# Threads for tools that block
#
# A system call may never return, and threads can't be cancelled. So the caller can leave at
# any moment; the thread's result is then dropped. Threads are daemons and do not keep the
# process alive. An abandoned one still counts, so their number is bounded; other work uses
# other threads.

THREADS_MAX: Final = 64

_T = TypeVar("_T")
_places_of_this_loop: RunVar[anyio.CapacityLimiter] = RunVar("places for tools that block")


async def run_in_thread(work: Callable[[], _T]) -> _T:
    loop = asyncio.get_running_loop()
    # Not the future's own exception: a StopIteration can't be one.
    ended: asyncio.Future[tuple[_T | None, BaseException | None]] = loop.create_future()
    try:
        places = _places_of_this_loop.get()
    except LookupError:
        places = anyio.CapacityLimiter(THREADS_MAX)
        _places_of_this_loop.set(places)
    place = object()
    await places.acquire_on_behalf_of(place)

    def end(value: _T | None, error: BaseException | None) -> None:
        places.release_on_behalf_of(place)
        if not ended.done():
            ended.set_result((value, error))

    def run() -> None:
        value = error = None
        try:
            value = work()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(end, value, error)

    try:
        context = contextvars.copy_context()
        Thread(target=context.run, args=(run,), name="tool", daemon=True).start()
    except BaseException:
        places.release_on_behalf_of(place)
        raise
    value, error = await ended
    if error is not None:
        raise error
    return cast("_T", value)


def typed_tool(
    function: Callable[..., object], *, tool_class: ToolClass = "read", name: str | None = None
) -> Tool:
    name = name or function.__name__
    description = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
    if not description:
        raise TypeError(f"{name} has no docstring for a model to read")
    model, names, host_name = _read_signature(function)

    def read_arguments(arguments: JsonObject) -> BaseModel:
        try:
            return model.model_validate(arguments)
        except ValidationError as error:
            raise ToolFailed("\n".join(mistakes(error, names.values()))) from None

    def mistake_in(arguments: JsonObject) -> str | None:
        try:
            read_arguments(arguments)
        except ToolFailed as failure:
            return str(failure)
        return None

    async def run(arguments: JsonObject, host: ToolHost) -> str:
        read = read_arguments(arguments)
        given = {
            name: getattr(read, field)
            for field, name in names.items()
            if field in read.model_fields_set
        }
        if host_name is not None:
            given[host_name] = host
        if inspect.iscoroutinefunction(function):
            value = await function(**given)
        else:
            value = await run_in_thread(partial(function, **given))
        return value if isinstance(value, str) else to_json(value, inf_nan_mode="strings").decode()

    parameters: JsonObject = _without_titles(model.model_json_schema())
    parameters.setdefault("properties", {})
    return Tool(
        description=ToolDescription(
            name=name,
            description=" ".join(description.split()),
            parameters=parameters,
            tool_class=tool_class,
        ),
        run=run,
        mistake_in=mistake_in,
    )


def _read_signature(
    function: Callable[..., object],
) -> tuple[type[BaseModel], dict[str, str], str | None]:
    """A model of the arguments, the names of the parameters by its fields, and the name of
    the parameter for the host."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    host_name: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{function.__name__}: a model can't give {parameter}")
        if parameter.name not in hints:
            raise TypeError(f"{function.__name__}: {parameter.name} has no type")
        if hints[parameter.name] is ToolHost:
            host_name = parameter.name
            continue
        # A name of our own, for pydantic keeps some for itself (`schema`, `copy`, `_x`).
        field = f"argument_{len(names)}"
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[field] = (Annotated[hints[parameter.name], Field(alias=parameter.name)], default)
        names[field] = parameter.name
    if host_name is not None and not inspect.iscoroutinefunction(function):
        raise TypeError(f"{function.__name__} is not async: from a thread no host can be asked")
    config = ConfigDict(extra="forbid", allow_inf_nan=False)
    return create_model("Arguments", __config__=config, **fields), names, host_name
