"""Widgets: live state that is always shown to the model, and tools to change it.

A widget itself has no state. Its state is in the conversation's entries and is changed only
through the tool's host, so that replay rebuilds it, a rollback reverts it and a fork copies it. Its
screen depends on that state only, not on a clock or a counter, or every prompt would differ from
the last.

Two are built in. The notebook is a text that the model writes for itself; the todo list is a JSON
state. Every change is an entry with the whole new state. A change that fails changes nothing and
gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Final, Literal, Protocol, TypeAlias, TypeGuard, assert_never

from msgspec import Struct, structs
from pydantic import BeforeValidator, Field

from nplt_protocol.json_text import JsonObject, JsonValue
from nplt_server.tools import Tool, ToolFailed, ToolHost
from nplt_server.tools.typed import typed_tool


class WidgetView(Protocol):
    """The state that a widget may use when it renders its screen."""

    @property
    def notebook(self) -> str: ...

    def widget_state(self, name: str) -> JsonObject:
        """Returns the state of a widget, empty if it has none yet."""
        ...


class Widget(Protocol):
    """The interface of widgets. Subclasses inherit `execute_tool`."""

    name: str
    description: str
    tools: tuple[Tool, ...]

    def render_live_screen(self, view: WidgetView) -> str | None:
        """Returns Markdown under a heading of its own, or `None` if there is nothing to show."""
        ...

    async def execute_tool(self, tool_name: str, arguments: JsonObject, host: ToolHost) -> str:
        """Returns the result for the model. Raises `ToolFailed` if the tool fails; nothing is
        changed then."""
        for tool in self.tools:
            if tool.description.name == tool_name:
                return await tool.run(arguments, host)
        raise ToolFailed(f"there is no tool {tool_name!r} here")


def widget_tools(widgets: Iterable[Widget]) -> tuple[Tool, ...]:
    """Returns the tools of all widgets; each runs through its widget's `execute_tool`."""
    return tuple(
        Tool(
            description=tool.description,
            run=partial(widget.execute_tool, tool.description.name),
            mistake_in=tool.mistake_in,
        )
        for widget in widgets
        for tool in widget.tools
    )


NOTEBOOK_BYTES_MAX: Final = 16 * 1024

NotebookAction: TypeAlias = Literal["write", "append", "replace"]


class MemoryNotebookWidget(Widget):
    name = "notebook"
    description = "What the model noted down for itself."

    def __init__(self) -> None:
        self.tools = (typed_tool(notebook, tool_class="write"),)

    def render_live_screen(self, view: WidgetView) -> str | None:
        return f"## Notebook\n{view.notebook.rstrip()}" if view.notebook.strip() else None


async def notebook(
    action: Annotated[
        NotebookAction,
        Field(
            description="write: the whole notebook becomes `text`; append: `text` is added on a "
            "new line at the end; replace: `text` takes the place of `old_text`"
        ),
    ],
    text: Annotated[str, Field(description="may be empty: to erase")],
    host: ToolHost,
    old_text: Annotated[
        str | None,
        Field(
            description="for replace only: the passage as it stands, to the letter, with enough "
            "around it to occur just once"
        ),
    ] = None,
) -> str:
    """Changes your notebook. What stands in it stays in view for the whole conversation,
    also when older messages no longer do: note facts, decisions and wishes worth keeping.
    """

    def change(before: str) -> str:
        after = edited(before, action, text=text, old_text=old_text)
        if notebook_bytes(after) > NOTEBOOK_BYTES_MAX:
            raise ToolFailed(
                f"the notebook would have {notebook_bytes(after):,} bytes, and can have at most "
                f"{NOTEBOOK_BYTES_MAX:,}. It stays as it was, with {notebook_bytes(before):,}: "
                "shorten it first, by write or replace"
            )
        return after

    size = notebook_bytes(await host.update_notebook(change))
    return f"Done. The notebook has {size:,} of at most {NOTEBOOK_BYTES_MAX:,} bytes."


def edited(before: str, action: NotebookAction, *, text: str, old_text: str | None) -> str:
    if old_text and action != "replace":
        # The model probably meant replace; write would erase the rest of the notebook.
        raise ToolFailed(f"old_text goes with replace, not with {action}; nothing was changed")
    match action:
        case "write":
            return text
        case "append":
            between = "\n" if before and text and not before.endswith("\n") else ""
            return before + between + text
        case "replace":
            pass
        case _:
            assert_never(action)
    if not old_text:
        raise ToolFailed("replace needs old_text, the passage to be replaced")
    first = before.find(old_text)
    if first < 0:
        raise ToolFailed(
            "old_text does not occur in the notebook: it must be given to the letter, "
            "line breaks and spaces included"
        )
    if before.rfind(old_text) != first:
        # Occurrences that overlap are ambiguous too.
        raise ToolFailed(
            f"old_text occurs {max(2, before.count(old_text))} times in the notebook: give more "
            "of what stands around it, so that it occurs once"
        )
    return before.replace(old_text, text)


def notebook_bytes(text: str) -> int:
    return len(text.encode(errors="replace"))


ITEMS_MAX: Final = 100
TEXT_CHARACTERS_MAX: Final = 500


class TodoItem(Struct, frozen=True, kw_only=True):
    number: int
    text: str
    done: bool = False


class TodoList(Struct, frozen=True, kw_only=True):
    items: tuple[TodoItem, ...] = ()
    next_number: int = 1
    """The number of the next item. It only increases: numbers of removed items are not reused."""

    @classmethod
    def from_state(cls, state: Mapping[str, JsonValue]) -> TodoList:
        """Reads the list from its JSON state. An empty state is an empty list; malformed items are
        skipped."""
        kept, given = state.get("items"), state.get("next_number")
        items = [
            TodoItem(number=number, text=text, done=done)
            for item in (kept if isinstance(kept, list) else [])
            if isinstance(item, dict)
            and _is_number(number := item.get("number"))
            and isinstance(text := item.get("text"), str)
            and isinstance(done := item.get("done"), bool)
        ]
        after_all = max((item.number for item in items), default=0) + 1
        next_number = max(after_all, given if _is_number(given) else 1)
        return cls(items=tuple(items), next_number=next_number)

    def as_state(self) -> JsonObject:
        items: list[JsonValue] = [
            {"number": item.number, "text": item.text, "done": item.done} for item in self.items
        ]
        return {"items": items, "next_number": self.next_number}

    def with_added(self, texts: Sequence[str]) -> TodoList:
        """Raises `ToolFailed` if a text is no valid item or the list is full."""
        if len(self.items) + len(texts) > ITEMS_MAX:
            raise ToolFailed(
                f"the list holds at most {ITEMS_MAX} items and has {len(self.items)}: "
                f"there is no room for {len(texts)} more. Remove what is done first"
            )
        added: list[TodoItem] = []
        for number, text in enumerate(texts, self.next_number):
            line = " ".join(text.split())
            if not line:
                raise ToolFailed("an item has a text; nothing was added")
            if len(line) > TEXT_CHARACTERS_MAX:
                raise ToolFailed(
                    f"an item has at most {TEXT_CHARACTERS_MAX} characters, and one of these has "
                    f"{len(line):,}; nothing was added"
                )
            added.append(TodoItem(number=number, text=line))
        return TodoList(items=(*self.items, *added), next_number=self.next_number + len(added))


def _is_number(value: JsonValue) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


TodoAction: TypeAlias = Literal["add", "done", "reopen", "remove", "clear"]


class TodoWidget(Widget):
    """An item keeps its number and no number is reused, so a model can refer to an item it saw long
    ago. A call may add or tick off several items; it does everything or nothing."""

    name = "todo"
    description = "What the model has set out to do, and what of it is done."

    def __init__(self) -> None:
        self.tools = (typed_tool(todo, tool_class="write"),)

    def render_live_screen(self, view: WidgetView) -> str | None:
        items = TodoList.from_state(view.widget_state(self.name)).items
        lines = [f"- [{'x' if item.done else ' '}] {item.number} {item.text}" for item in items]
        return "\n".join(["## Todo", *lines]) if lines else None


def _as_list(value: object) -> object:
    """Accepts a single value as a list of one, and no value as an empty list: models write both."""
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
    result = ""

    def change(state: JsonObject) -> JsonObject:
        nonlocal result
        after, result = changed(TodoList.from_state(state), action, texts=texts, numbers=numbers)
        return after.as_state()

    await host.update_widget(TodoWidget.name, change)
    return result


def changed(
    todos: TodoList, action: TodoAction, *, texts: Sequence[str], numbers: Sequence[int]
) -> tuple[TodoList, str]:
    """Returns the list after the action and the result for the model. Superfluous arguments are
    ignored, except for clear, where they suggest that the model meant something else."""
    listed = ", ".join(map(str, dict.fromkeys(numbers)))
    if action == "add":
        if not texts:
            raise ToolFailed("add takes texts, one for each new item")
        after = todos.with_added(texts)
        added = [item.number for item in after.items[len(todos.items) :]]
        return after, f"Added {', '.join(map(str, added))}."
    if action == "clear":
        if texts or numbers:
            raise ToolFailed("clear removes every item and takes neither texts nor numbers")
        left = sum(not item.done for item in todos.items)
        result = f"Removed all {len(todos.items)} items; {left} were open."
        return structs.replace(todos, items=()), result
    if not numbers:
        raise ToolFailed(f"{action} takes numbers, those the list shows")
    named, there = set(numbers), [item.number for item in todos.items]
    if missing := sorted(named.difference(there)):
        raise ToolFailed(
            f"there is no item {', '.join(map(str, missing))}, so nothing was changed; "
            f"the items are {', '.join(map(str, there)) or 'none: the list is empty'}"
        )
    if action == "remove":
        items = [item for item in todos.items if item.number not in named]
        return structs.replace(todos, items=tuple(items)), f"Removed {listed}."
    items = [
        structs.replace(item, done=action == "done") if item.number in named else item
        for item in todos.items
    ]
    result = f"{'Done' if action == 'done' else 'Open again'}: {listed}."
    return structs.replace(todos, items=tuple(items)), result


def default_widgets() -> tuple[Widget, ...]:
    return (MemoryNotebookWidget(), TodoWidget())
