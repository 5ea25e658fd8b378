"""Makes the pictures of the documents anew: `make screenshots`.

The full-screen chat runs without a terminal against a peer with fixed replies, so that the
same source gives the same bytes.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.client.screen_stage import chat_on_stage, screen_text, until
from tests.client.scripted_peer import SESSION, scripted_peer
from tests.client.staged_server import Stage, message_json
from textual.widgets import Input

from nplt_client.chat.approvals import ApprovalWanted
from nplt_client.tui.composer import Composer
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import SessionRow

FOLDER = Path(__file__).parents[2] / "docs" / "screenshots"
SIZE = (106, 36)
MODEL = "openai/gpt-5.2"
SHOWN_ID = "4f1c9ad2b07e4c5d8a61f3e29b7d0c84"
FONTS = '"Fira Code", "DejaVu Sans Mono", Menlo, Consolas, monospace'

QUESTION = (
    "How do I count the words of a file in Python?\nShow me the shortest way you would stand by."
)
ANSWER = """\
Read it and split it; `str.split()` without arguments takes *any* white space.

```python
from pathlib import Path

def count_words(path: str) -> int:
    text = Path(path).read_text(encoding="utf-8")
    return len(text.split())  # 日本語 counts as one word
```

| way | memory | for |
|---|---|---|
| `read_text` | the whole file | most files |
| line by line | one line | logs of many GB |

1. It does not care about **trailing** newlines.
2. An empty file has 0 words.
"""


def conversation() -> list[JsonObject]:
    tool = {
        "tool_name": "now",
        "tool_call_id": "call-1",
        "arguments": {"timezone": "Asia/Tokyo"},
        "result": "2026-01-02T12:04:05+09:00",
        "status": "success",
        "duration": 0.2,
    }
    return [
        message_json(1, "user", "What time is it in Tokyo?"),
        message_json(2, "assistant", "", tool_calls=[tool]),
        message_json(
            3,
            "assistant",
            "Four minutes past noon.",
            turn_id="turn-of-1",
            state="completed",
            model=MODEL,
        ),
        message_json(4, "user", QUESTION, turn_id="turn-2"),
        message_json(5, "assistant", ANSWER, turn_id="turn-2", state="completed", model=MODEL),
    ]


def sessions() -> list[SessionRow]:
    rows = (
        ("counting words", 5, "It does not care about trailing newlines.", "idle"),
        ("trip to Kyōto 京都", 42, "The train at 9:03 is the better one.", "running"),
        ("release notes 2.4", 18, "Shorter. Users read the first three lines.", "idle"),
        ("why is the sky blue", 4, "Because the short waves scatter more.", "idle"),
        ("review of the parser", 27, "The second loop reads past the end.", "idle"),
        ("Übung: Dativ oder Akkusativ", 33, "Nach „mit“ steht der Dativ.", "idle"),
        ("garden plan", 11, "Beans beside the fence, they climb.", "idle"),
    )
    return [
        SessionRow(
            session_id=f"{place:032x}" if place else SESSION,
            name=name,
            message_count=count,
            created_at="2026-01-02T03:04:05+00:00",
            updated_at="",
            last_accessed="",
            is_current=not place,
            model=MODEL,
            state=state,
            preview=preview,
            pinned=place == 2,
        )
        for place, (name, count, preview, state) in enumerate(rows)
    ]


async def make(folder: Path, themes: Sequence[str]) -> None:
    stage = Stage(
        name="counting words",
        model=MODEL,
        messages=conversation(),
        sessions=sessions(),
        usage={"input_tokens": 4210, "output_tokens": 389},
        percent=1.2,
        cost={"amount": 0.0131, "currency": "USD"},
        clients=({"user": "ada", "client": "nplt/1"}, {"user": "local", "client": "nplt/1"}),
    )
    for theme in themes:
        with tempfile.TemporaryDirectory() as state, scripted_peer(stage.script()) as peer:
            Path(state, "theme").write_text(theme)
            async with chat_on_stage(peer.url, Path(state), resume=SESSION, size=SIZE) as (
                app,
                pilot,
            ):
                app.query_one(Composer).cursor_blink = False
                await until(pilot, lambda: len(app.transcript.turns) == 2)
                await pilot.pause(0.5)
                save(app.export_screenshot(title="nplt"), folder / f"chat-{theme}.svg")
                if theme != "dark":
                    continue
                await pilot.press("/", "s", "e", "s", "s", "i", "o", "n", "s", "enter")
                await until(pilot, lambda: len(app.screen_stack) == 2)
                app.screen.query_one(Input).cursor_blink = False
                await pilot.pause(0.5)
                save(app.export_screenshot(title="nplt"), folder / "sessions.svg")
                await pilot.press("escape")
                wanted = ApprovalWanted(
                    approval_id="1",
                    tool_name="write_file",
                    arguments='{\n  "path": "notes/today.md",\n  "text": "Buy milk."\n}',
                )
                app.session.change_queue.add([wanted])
                await until(pilot, lambda: "or arrows" in screen_text(app))
                await pilot.press("right")
                await until(pilot, lambda: "Enter allows" in screen_text(app))
                save(app.export_screenshot(title="nplt"), folder / "approval.svg")
                await pilot.press("escape")


def save(svg: str, path: Path) -> None:
    """Without the web font: a page that shows it must not call a stranger's server."""
    path.parent.mkdir(parents=True, exist_ok=True)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", FONTS).replace(SESSION, SHOWN_ID)
    svg = re.sub(r"terminal-\d+", "terminal-1", svg)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    path.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    asyncio.run(make(target, ("dark", "light", "terminal")))
