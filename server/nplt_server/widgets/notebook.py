"""The memory notebook: a text the model keeps for itself, always before its eyes.

Every change is an entry of its own kind with the whole new text. An edit that
can't be done as it was meant changes nothing and says why.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias, assert_never

from pydantic import Field

from nplt_protocol.json_values import JsonObject
from nplt_server.tools.base import Tool, ToolFailed, ToolHost
from nplt_server.tools.typed import typed_tool
from nplt_server.widgets.base import WidgetView, execute_one_of

NOTEBOOK_BYTES_MAX: Final = 16 * 1024

NotebookAction: TypeAlias = Literal["write", "append", "replace"]


class NotebookWidget:
    name = "notebook"
    description = "What the model noted down for itself."

    def __init__(self) -> None:
        self.tools: Final[tuple[Tool, ...]] = (
            typed_tool(notebook, name="notebook", tool_class="write"),
        )

    def render_live_screen(self, view: WidgetView) -> str | None:
        return f"## Notebook\n{view.notebook.rstrip()}" if view.notebook.strip() else None

    async def execute_tool(self, tool_name: str, arguments: JsonObject, host: ToolHost) -> str:
        return await execute_one_of(self.tools, tool_name, arguments, host)


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
        check_size(before, after)
        return after

    size = notebook_bytes(await host.update_notebook(change))
    return f"Done. The notebook has {size:,} of at most {NOTEBOOK_BYTES_MAX:,} bytes."


def edited(before: str, action: NotebookAction, *, text: str, old_text: str | None) -> str:
    if old_text and action != "replace":
        # Most likely replace was meant, and write would wipe out all the rest.
        raise ToolFailed(f"old_text goes with replace, not with {action}; nothing was changed")
    match action:
        case "write":
            return text
        case "append":
            between = "\n" if before and text and not before.endswith("\n") else ""
            return before + between + text
        case "replace":
            return _replaced(before, old_text or "", text)
        case _:
            assert_never(action)


def check_size(before: str, after: str) -> None:
    size = notebook_bytes(after)
    if size > NOTEBOOK_BYTES_MAX:
        raise ToolFailed(
            f"the notebook would have {size:,} bytes, and can have at most "
            f"{NOTEBOOK_BYTES_MAX:,}. It stays as it was, with {notebook_bytes(before):,}: "
            "shorten it first, by write or replace"
        )


def _replaced(before: str, old_text: str, text: str) -> str:
    if not old_text:
        raise ToolFailed("replace needs old_text, the passage to be replaced")
    count = _occurrences(before, old_text)
    if count == 0:
        raise ToolFailed(
            "old_text does not occur in the notebook: it must be given to the letter, "
            "line breaks and spaces included"
        )
    if count > 1:
        raise ToolFailed(
            f"old_text occurs {count} times in the notebook: give more of what stands "
            "around it, so that it occurs once"
        )
    return before.replace(old_text, text)


def _occurrences(text: str, passage: str) -> int:
    """Two that overlap are two: which of them was meant could not be told."""
    first, last = text.find(passage), text.rfind(passage)
    return max(2, text.count(passage)) if first != last else int(first >= 0)


def notebook_bytes(text: str) -> int:
    return len(text.encode(errors="replace"))
