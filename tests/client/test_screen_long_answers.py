"""Answers of any length on the screen: few widgets, and the same text as it came."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Static

from nplt_client.tui.markdown import MARKDOWN_LINES_MAX, AnswerView, FoldedBlock

pytestmark = pytest.mark.slow

WIDGETS_MAX = 60
MIXED = """\
# Title

- one
- two

  still two
- three

| a | b |
|---|---|
| 1 | 2 |

> quoted
> on

```python
x = 1
```

Under
===

words [link][there]

[there]: http://example.org
"""


class AnswerApp(App[None]):
    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.view = AnswerView(text)

    def compose(self) -> ComposeResult:
        yield self.view


@asynccontextmanager
async def shown(text: str = "") -> AsyncIterator[tuple[AnswerView, Pilot[None]]]:
    app = AnswerApp(text)
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause()
        yield app.view, pilot


def texts(view: AnswerView) -> list[str]:
    """What each widget says, from the top."""
    return [str(widget.render()) for widget in view.query(Static) if not widget.children]


def widgets(view: AnswerView) -> int:
    return len(view.query(Widget))


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"- item {number}\n" for number in range(300)),
        "".join(f"- item {number}\n" for number in range(10_000)),
        "| a | b |\n|---|---|\n" + "".join(f"| {number} | x |\n" for number in range(2_000)),
        "```\n" + "line of code\n" * 4_000,
        "w" * 200_000,
    ],
    ids=["list", "long list", "table", "code", "one line"],
)
async def test_long_lists_tables_and_code_are_few_widgets(text: str) -> None:
    async with shown(text) as (view, pilot):
        assert widgets(view) < WIDGETS_MAX
        await view.grow("- one more\n")
        await pilot.pause()
        assert widgets(view) < WIDGETS_MAX
        assert "one more" in texts(view)[-1]


@pytest.mark.parametrize("step", [1, 7])
async def test_a_streamed_answer_ends_like_one_that_came_at_once(step: int) -> None:
    async with shown(MIXED) as (whole, _):
        wanted = texts(whole)
    async with shown() as (view, pilot):
        for place in range(0, len(MIXED), step):
            await view.grow(MIXED[place : place + step])
        await view.store(MIXED)
        await pilot.pause()
        assert texts(view) == wanted


async def test_a_growing_list_is_drawn_in_its_own_widget() -> None:
    async with shown("- a\n") as (view, _):
        block = view.query_one(FoldedBlock)
        await view.grow("- b\n")
        await view.store("- a\n- b\n")
        assert view.query_one(FoldedBlock) is block
        assert block.render().plain == "• a\n• b"


async def test_beyond_the_limit_an_answer_is_shown_without_markdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = "- *a*\n" * MARKDOWN_LINES_MAX
    redrawn: list[Widget] = []
    draw = Static.update

    def noted(self: Static, content: str = "", *, layout: bool = True) -> None:
        redrawn.append(self)
        draw(self, content, layout=layout)

    async with shown(head) as (view, pilot):
        await view.grow("- *b*\n")
        await pilot.pause()
        monkeypatch.setattr(Static, "update", noted)
        await view.grow("- *c*\n")
        await pilot.pause()
        assert texts(view)[0].startswith("• a\n• a")
        assert "as it was written" in texts(view)[1]
        assert texts(view)[2] == "- *b*\n- *c*\n"
        assert len(redrawn) == 1, "only the last page"
        await view.show_raw(True)
        assert texts(view)[0].startswith("- *a*\n")
