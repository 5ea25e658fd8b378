"""The todo list: what the model has set out to do, and how far it has come.

An item keeps its number for good, and no number is given twice; so a model may
speak of item 3 however long ago it saw the list. Several items may be added or
ticked off in one call, and a call does all it was asked to or nothing. The
changes themselves are in `todo_list`, apart from how a model asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from nplt_protocol.json_values import JsonObject
from nplt_server.tools.base import Tool, ToolFailed, ToolHost
from nplt_server.tools.typed import typed_tool
from nplt_server.widgets.base import WidgetView, execute_one_of
from nplt_server.widgets.todo_list import ITEMS_MAX, TEXT_CHARACTERS_MAX, TodoList

TodoAction: TypeAlias = Literal["add", "done", "reopen", "remove", "clear"]

_NAME: Final = "todo"


class TodoWidget:
    name = _NAME
    description = "What the model has set out to do, and what of it is done."

    def __init__(self) -> None:
        self.tools: Final[tuple[Tool, ...]] = (typed_tool(todo, name=_NAME, tool_class="write"),)

    def render_live_screen(self, view: WidgetView) -> str | None:
        items = TodoList.from_state(view.widget_state(self.name)).items
        lines = [f"- [{'x' if item.done else ' '}] {item.number} {item.text}" for item in items]
        return "\n".join(["## Todo", *lines]) if lines else None

    async def execute_tool(self, tool_name: str, arguments: JsonObject, host: ToolHost) -> str:
        return await execute_one_of(self.tools, tool_name, arguments, host)


def _as_list(value: object) -> object:
    """One is as good as a list of one, and nothing as an empty list: models write both."""
    if value is None or value == "":
        return []
    return [value] if isinstance(value, str | int) else value


async def todo(
    action: Annotated[
        TodoAction,
        Field(
            description="add: new items with these `texts`; done, reopen, remove: the items with "
            "these `numbers`; clear: remove every item"
        ),
    ],
    host: ToolHost,
    texts: Annotated[
        tuple[str, ...],
        BeforeValidator(_as_list),
        Field(
            description=f"for add: a line each, at most {TEXT_CHARACTERS_MAX} characters; "
            f"the list holds at most {ITEMS_MAX} items"
        ),
    ] = (),
    numbers: Annotated[
        tuple[int, ...],
        BeforeValidator(_as_list),
        Field(description="for done, reopen, remove: as the list shows them"),
    ] = (),
) -> str:
    """Keeps your todo list, which stays in view for the whole conversation. Use it for work
    of several steps, and tick items off as they are done. Items keep their numbers.
    """
    told = ""

    def change(state: JsonObject) -> JsonObject:
        nonlocal told
        after, told = changed(TodoList.from_state(state), action, texts=texts, numbers=numbers)
        return after.as_state()

    await host.update_widget(_NAME, change)
    return told


def changed(
    todos: TodoList, action: TodoAction, *, texts: Sequence[str], numbers: Sequence[int]
) -> tuple[TodoList, str]:
    """The list after it, and what the model is told. More than it takes is no mistake,
    but for clear: whoever names something there means it to stay, or to be the rest."""
    needed = {"add": bool(texts), "clear": not (texts or numbers)}
    if not needed.get(action, bool(numbers)):
        raise ToolFailed(_wanted(action))
    match action:
        case "add":
            after = todos.with_added(texts)
            added = [item.number for item in after.items[len(todos.items) :]]
            return after, f"Added {_listed(added)}."
        case "done":
            return todos.with_done(numbers, done=True), f"Done: {_listed(numbers)}."
        case "reopen":
            return todos.with_done(numbers, done=False), f"Open again: {_listed(numbers)}."
        case "remove":
            return todos.without(numbers), f"Removed {_listed(numbers)}."
        case "clear":
            left = sum(not item.done for item in todos.items)
            return todos.cleared(), f"Removed all {len(todos.items)} items; {left} were open."


def _wanted(action: TodoAction) -> str:
    match action:
        case "add":
            return "add takes texts, one for each new item"
        case "clear":
            return "clear removes every item and takes neither texts nor numbers"
        case _:
            return f"{action} takes numbers, those the list shows"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, dict.fromkeys(numbers)))
