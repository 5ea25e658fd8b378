"""One turn on the screen: what was asked, and everything that came of it, in order.

A view may be told things before it stands on the screen; it then comes there
whole, in one step, which is what makes a page of history quick to show.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from nplt_client.fullscreen.answer_view import AnswerView
from nplt_client.fullscreen.changes import (
    OfTurn,
    PromptShown,
    ReasoningGrew,
    ReasoningStands,
    TextGrew,
    TextStands,
    ToolShown,
    TurnBegan,
    TurnEnded,
)
from nplt_client.fullscreen.fold import Fold
from nplt_client.fullscreen.safe_text import safe_line

_PROMPT_CHARACTERS_MAX = 20_000
_ARGUMENTS_WIDTH = 60


class TurnView(Widget):
    DEFAULT_CSS = """
    TurnView {
        height: auto;
        layout: vertical;
        .prompt {
            height: auto;
            margin: 0 1 1 1;
            padding: 0 1;
            border-left: outer $primary;
            background: $surface;
        }
        .prompt.-theirs { border-left: outer $secondary; }
        .prompt.-waiting { color: $text-muted; text-style: italic; }
        .end { height: auto; margin: 0 2 1 2; color: $text-muted; }
        .end.-failed { color: $text-error; }
        &.-resting > * { display: none; }
    }
    """

    def __init__(self, turn_id: str, *, is_raw: bool = False) -> None:
        super().__init__()
        self.turn_id = turn_id
        self.seq = 0
        self.prompt_text = ""
        self._is_raw = is_raw
        self._prompt = Static(markup=False, classes="prompt")
        self._prompt.display = False
        self._end = Static(markup=False, classes="end")
        self._end.display = False
        self._answers: dict[int, AnswerView] = {}
        self._reasoning: dict[int, tuple[Fold, str]] = {}
        self._tools: dict[str, tuple[Fold, ToolShown]] = {}
        self._ended = False
        self._prepared: list[Widget] = [self._prompt, self._end]

    def compose(self) -> ComposeResult:
        yield from self._prepared

    def rest(self) -> None:
        """Far from where the person looks: as high as it was, and no work for anyone."""
        if not self.has_class("-resting") and self.outer_size.height:
            self.styles.height = self.outer_size.height
            self.add_class("-resting")

    def wake(self) -> None:
        if self.has_class("-resting"):
            self.styles.height = "auto"
            self.remove_class("-resting")

    @property
    def answer(self) -> str:
        texts = (self._answers[call].source for call in sorted(self._answers))
        return "\n\n".join(text for text in texts if text.strip())

    async def apply(self, change: OfTurn) -> None:
        match change:
            case PromptShown():
                self._show_prompt(change)
            case TurnBegan():
                self._prompt.remove_class("-waiting")
                self._say_at_end("")
            case TextGrew():
                await (await self._answer_of(change.call)).grow(change.piece)
            case TextStands():
                if change.text or change.call in self._answers:
                    await (await self._answer_of(change.call)).stand(change.text)
            case ReasoningGrew():
                told = self._reasoning[change.call][1] if change.call in self._reasoning else ""
                await self._reason(change.call, told + change.piece)
            case ReasoningStands():
                await self._reason(change.call, change.text)
            case ToolShown():
                await self._show_tool(change)
            case TurnEnded():
                self._finish(change)
            case _:
                assert_never(change)

    def wait(self, words: str) -> None:
        """Accepted or on its way, not yet begun."""
        if not self._ended:
            self._prompt.add_class("-waiting")
            self._say_at_end(words)

    def open_or_close_folds(self, is_open: bool) -> None:
        for fold in self.query(Fold):
            fold.open_or_close(is_open)

    async def show_raw(self, is_raw: bool) -> None:
        self._is_raw = is_raw
        for answer in self._answers.values():
            await answer.show_raw(is_raw)

    def _show_prompt(self, change: PromptShown) -> None:
        self.seq = change.seq or self.seq
        self.prompt_text = change.text
        shown = change.text[:_PROMPT_CHARACTERS_MAX]
        if len(shown) < len(change.text):
            shown += f"\n… ({len(change.text) - len(shown):,} more characters)"
        self._prompt.set_class(not change.is_mine, "-theirs")
        self._prompt.update(Content(shown.rstrip("\n")))
        self._prompt.display = True

    async def _answer_of(self, call: int) -> AnswerView:
        if call not in self._answers:
            self._answers[call] = AnswerView(is_raw=self._is_raw)
            await self._add(self._answers[call])
        return self._answers[call]

    async def _reason(self, call: int, text: str) -> None:
        head = f"reasoning · {len(text.split()):,} words"
        if call in self._reasoning:
            fold = self._reasoning[call][0]
            fold.tell(head, text)
        else:
            fold = Fold(head, text)
            before = self._answers.get(call)
            await self._add(fold, before=before)
        self._reasoning[call] = (fold, text)

    async def _show_tool(self, change: ToolShown) -> None:
        known = self._tools.get(change.tool_call_id)
        arguments = change.arguments or (known[1].arguments if known else None) or "{}"
        head, body = tool_words(change, arguments)
        if known is None:
            fold = Fold(head, body)
            await self._add(fold)
        else:
            fold, shown = known
            if change.status == "pending" != shown.status:
                return  # told late: its result is there already
            fold.tell(head, body)
        fold.set_class(change.status in ("failed", "skipped", "denied"), "-failed")
        self._tools[change.tool_call_id] = (fold, replace(change, arguments=arguments))

    def _finish(self, change: TurnEnded) -> None:
        self._ended = True
        self._prompt.remove_class("-waiting")
        match change.state:
            case "completed":
                self._say_at_end("")
            case "interrupted":
                self._say_at_end("■ interrupted; what came is kept")
            case "failed":
                self._end.add_class("-failed")
                self._say_at_end(f"✗ {change.error or 'the turn failed'}")
            case _:
                assert_never(change.state)

    def _say_at_end(self, words: str) -> None:
        self._end.update(Content(words))
        self._end.display = bool(words)

    async def _add(self, view: Widget, *, before: Widget | None = None) -> None:
        place = before or self._end
        if self.is_attached:
            await self.mount(view, before=place)
        else:
            self._prepared.insert(self._prepared.index(place), view)


def tool_words(change: ToolShown, arguments: str) -> tuple[str, str]:
    """The line, and what it opens to."""
    shown = "" if arguments == "{}" else f" {safe_line(arguments, _ARGUMENTS_WIDTH)}"
    state = "running…" if change.status == "pending" else change.status
    time = "" if change.seconds is None else f" · {change.seconds:.1f} s"
    body = f"arguments: {arguments}"
    if change.result:
        body += f"\n{change.result}"
    return f"⚙ {change.name}{shown} · {state}{time}", body
