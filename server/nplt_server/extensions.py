"""Loads the operator's own Python: tools, widgets, a token counter, a compression listener.

The settings name each as `module:name`; the module must be importable (installed, or in
`PYTHONPATH`). Everything is loaded and checked when the server starts; a mistake is one
sentence. This module is also the public interface for authors of extensions: they import what
they need from here.

    tools            a typed function with a docstring, or the result of `typed_tool`.
                     A bare function counts as one that writes: it needs an approval
                     before it runs, unless `tools:` in the settings says otherwise
    widgets          a class without parameters, or an object, that is a `Widget`
    token_counter    a function from text to a number, or a `TokenCounter`
    tool_executor    `async def f(tool: Tool, arguments: dict, host: ToolHost) -> str`, called
                     in place of `tool.run(arguments, host)`
    on_compression   `async def f(event: OverThreshold, conversation: Compressible)`, called
                     in place of `begin_epoch_and_summarize` when a context is nearly full
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct

from nplt_server.conversations.services import (
    Compressible,
    CompressionListener,
    OverThreshold,
    begin_epoch_and_summarize,
)
from nplt_server.errors import ConfigurationError
from nplt_server.settings import ExtensionSettings, load_named
from nplt_server.tokens import FunctionCounter, TokenCounter
from nplt_server.tools import Tool, ToolFailed, ToolHost, ToolRunner
from nplt_server.tools.arguments import get_required, parse_json_safely, parse_list
from nplt_server.tools.typed import typed_tool
from nplt_server.widgets import Widget, WidgetView

__all__ = [
    "Compressible",
    "Extensions",
    "OverThreshold",
    "TokenCounter",
    "Tool",
    "ToolFailed",
    "ToolHost",
    "Widget",
    "WidgetView",
    "begin_epoch_and_summarize",
    "check_tool_names",
    "get_required",
    "load_extensions",
    "parse_json_safely",
    "parse_list",
    "typed_tool",
]

_WIDGET_PARTS: Final = ("name", "description", "tools", "render_live_screen", "execute_tool")
_WIDGET_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


class BadExtension(Exception):
    """The loaded object is not what the setting requires. The message is a sentence without its
    subject."""


class Extensions(Struct, frozen=True):
    tools: list[Tool]
    widgets: list[Widget]
    token_counter: TokenCounter | None
    on_compression: CompressionListener | None
    tool_executor: ToolRunner | None


_T = TypeVar("_T")


def load_extensions(settings: ExtensionSettings) -> Extensions:
    """Raises `ConfigurationError` with one sentence per mistake."""
    mistakes: list[str] = []

    def load(setting: str, names: Sequence[str | None], make: Callable[[object], _T]) -> list[_T]:
        where = f"extensions.{setting}"
        loaded: list[_T] = []
        for name in filter(None, names):
            try:
                loaded.append(make(load_named(name, where)))
            except ConfigurationError as error:
                mistakes.extend(error.mistakes)
            except BadExtension as mistake:
                mistakes.append(f"{where}: {name!r} {mistake}")
            except Exception as error:  # the operator's code may raise anything
                mistakes.append(f"{where}: {name!r} failed: {type(error).__name__}: {error}")
        return loaded

    own = Extensions(
        load("tools", settings.tools, _as_tool),
        load("widgets", settings.widgets, _as_widget),
        next(iter(load("token_counter", [settings.token_counter], _as_counter)), None),
        next(iter(load("on_compression", [settings.on_compression], _as_listener)), None),
        next(iter(load("tool_executor", [settings.tool_executor], _as_runner)), None),
    )
    if mistakes:
        raise ConfigurationError(mistakes)
    return own


def check_tool_names(tools: Sequence[Tool]) -> None:
    """Raises `ConfigurationError` if two tools have the same name."""
    names = [tool.description.name for tool in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError([f"extensions: two tools are called {name!r}" for name in twice])


def _as_tool(loaded: object) -> Tool:
    if isinstance(loaded, Tool):
        return loaded
    if not inspect.isroutine(loaded):
        raise BadExtension("is neither a function nor a tool")
    try:
        return typed_tool(loaded, tool_class="write")
    except TypeError as error:
        raise BadExtension(f"can't be a tool: {error}") from None


def _as_widget(loaded: object) -> Widget:
    made: Any = loaded() if isinstance(loaded, type) else loaded
    if missing := [part for part in _WIDGET_PARTS if not hasattr(made, part)]:
        raise BadExtension(f"is not a widget: it has no {', '.join(missing)}")
    if not _WIDGET_NAME.fullmatch(made.name) or made.name in ("notebook", "todo"):
        raise BadExtension(f"can't be called {made.name!r}")
    if not all(isinstance(tool, Tool) for tool in made.tools):
        raise BadExtension("is not a widget: its tools are made with typed_tool")
    widget: Widget = made
    return widget


def _as_counter(loaded: object) -> TokenCounter:
    made: Any = loaded() if isinstance(loaded, type) else loaded
    if inspect.isroutine(made):
        made = FunctionCounter(made.__name__, made)
    if not isinstance(getattr(made, "name", None), str) or not hasattr(made, "count"):
        raise BadExtension("is not a token counter: it has no name and count")
    if not isinstance(made.count("How many tokens are these?"), int):
        raise BadExtension("is not a token counter: it does not give whole numbers")
    counter: TokenCounter = made
    return counter


def _as_listener(loaded: object) -> CompressionListener:
    if not inspect.iscoroutinefunction(loaded):
        raise BadExtension("is not an async function of an event and a conversation")
    return loaded


def _as_runner(loaded: object) -> ToolRunner:
    if not inspect.iscoroutinefunction(loaded):
        raise BadExtension("is not an async function of a tool, its arguments and a host")
    return loaded
