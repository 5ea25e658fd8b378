"""The widgets that show a conversation: turns, tool calls, notices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ClassVar, assert_never

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Click
from textual.widget import Widget
from textual.widgets import Static

from nplt_client.chat import changes
from nplt_client.render.text import safe_line
from nplt_client.tui.markdown import AnswerView

_BODY_CHARACTERS_MAX = 20_000


class CollapsibleLine(Static, can_focus=True):
    """One line that a click or Enter expands: reasoning, a tool call.

    It is redrawn only when its own text changes.
    """

    DEFAULT_CSS = """
    CollapsibleLine {
        height: auto;
        margin: 0 2 1 2;
        color: $text-muted;
        pointer: pointer;
        &:focus { background: $boost; color: $text; }
        &:hover { background: $boost; }
        &.-failed { color: $text-error; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "open_or_close", "Open or close", show=False)
    ]

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._head = self.body = ""
        self.is_open = False

    def set_text(self, head: str, body: str) -> None:
        is_seen = head != self._head or (body != self.body and self.is_open)
        self._head, self.body = head, body
        if is_seen:
            self._show()

    def action_open_or_close(self) -> None:
        self.is_open = not self.is_open
        self._show()

    def on_click(self, event: Click) -> None:
        event.stop()
        self.action_open_or_close()

    def _show(self) -> None:
        lines = [f"{'▾' if self.is_open else '▸'} {self._head}"]
        if self.is_open and self.body:
            body = self.body[:_BODY_CHARACTERS_MAX]
            lines += [f"    {line}" for line in body.split("\n")]
            if len(body) < len(self.body):
                lines.append(f"    … ({len(self.body) - len(body):,} more characters)")
        self.update(Content("\n".join(lines)))


_PROMPT_CHARACTERS_MAX = 20_000
_ARGUMENTS_WIDTH = 60
_TOOL_STATES = {"pending": "running…", "asks": "asks"}
"""The states of a tool call without a result, as its line shows them."""


class TurnView(Widget):
    """One turn: its prompt, answers, reasoning and tool calls, in order.

    Changes may be applied before it is mounted; then it is mounted in one step, which makes a
    page of history quick to show.
    """

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
        &.-hidden-content > * { display: none; }
        &.-found { background: $boost; }
    }
    """

    def __init__(self, turn_id: str, *, is_raw: bool = False) -> None:
        super().__init__()
        self.turn_id = turn_id
        self.seq = 0
        self._is_raw = is_raw
        self._prompt = Static(markup=False, classes="prompt")
        self._end = Static(markup=False, classes="end")
        self._prompt.display = self._end.display = False
        self._answers: dict[int, AnswerView] = {}
        self._joined: dict[str, tuple[int, int, str]] = {}
        """Describes each turn that goes on with this turn's answer: the call that goes on, the
        number added to its further calls, and the text before it."""
        self._reasoning: dict[int, CollapsibleLine] = {}
        self._tools: dict[str, tuple[CollapsibleLine, changes.ToolShown]] = {}
        self._ended = False
        self._prepared: list[Widget] = [self._prompt, self._end]

    def compose(self) -> ComposeResult:
        yield from self._prepared

    def show_content(self, is_near: bool = True) -> None:
        """Shows or hides the content. A hidden view keeps its height and needs no layout."""
        if is_near == self.has_class("-hidden-content") and (is_near or self.outer_size.height):
            self.styles.height = "auto" if is_near else self.outer_size.height
            self.set_class(not is_near, "-hidden-content")

    @property
    def answer(self) -> str:
        texts = (self._answers[call].source for call in sorted(self._answers))
        return "\n\n".join(text for text in texts if text.strip())

    def join(self, turn_id: str) -> None:
        """Shows the answer of that turn as the rest of the last answer here."""
        call = max(self._answers, default=0)
        before = self._answers[call].source if call in self._answers else ""
        self._joined[turn_id] = (call, call + 1, before)

    def _in_place(self, change: changes.TurnChange) -> changes.TurnChange:
        """The change with the call that shows it, if its turn goes on with an answer here."""
        if change.turn_id not in self._joined:
            return change
        call, added, before = self._joined[change.turn_id]
        match change:
            case changes.TextGrew(call=0, kind="answer"):
                return replace(change, call=call)
            case changes.TextReplaced(call=0, kind="answer"):
                return replace(change, call=call, text=before + change.text)
            case changes.TextGrew() | changes.TextReplaced() | changes.ToolShown():
                return replace(change, call=change.call + added)
            case _:
                return change

    async def apply(self, change: changes.TurnChange) -> None:
        change = self._in_place(change)
        match change:
            case changes.PromptShown(continues=True) if change.turn_id in self._joined:
                self._set_end("")
            case changes.PromptShown():
                self._show_prompt(change)
            case changes.TurnBegan():
                self._prompt.remove_class("-waiting")
                self._set_end("")
            case changes.TextGrew(kind="answer"):
                await (await self._answer_of(change.call)).grow(change.piece)
            case changes.TextGrew():
                fold = self._reasoning.get(change.call)
                await self._reason(change.call, (fold.body if fold else "") + change.piece)
            case changes.TextReplaced(kind="reasoning"):
                await self._reason(change.call, change.text)
            case changes.TextReplaced():
                if change.text or change.call in self._answers:
                    await (await self._answer_of(change.call)).store(change.text)
            case changes.ToolShown():
                await self._show_tool(change)
            case changes.TurnEnded():
                self._ended = True
                self._prompt.remove_class("-waiting")
                self._end.set_class(change.state == "failed", "-failed")
                self._set_end(change.words or change.model)
            case _:
                assert_never(change)

    def wait(self, words: str) -> None:
        """Shows a prompt whose turn has not begun."""
        if not self._ended:
            self._prompt.add_class("-waiting")
            self._set_end(words)

    async def show_raw(self, is_raw: bool) -> None:
        self._is_raw = is_raw
        for answer in self._answers.values():
            await answer.show_raw(is_raw)

    def _show_prompt(self, change: changes.PromptShown) -> None:
        self.seq = change.seq or self.seq
        shown = change.shown[:_PROMPT_CHARACTERS_MAX]
        if len(shown) < len(change.shown):
            shown += f"\n… ({len(change.shown) - len(shown):,} more characters)"
        self._prompt.set_class(not change.is_mine, "-theirs")
        self._prompt.update(Content(shown.rstrip("\n")))
        self._prompt.display = True

    async def _answer_of(self, call: int) -> AnswerView:
        if call not in self._answers:
            self._answers[call] = AnswerView(is_raw=self._is_raw)
            await self._add(self._answers[call])
        return self._answers[call]

    async def _reason(self, call: int, text: str) -> None:
        known = self._reasoning.get(call)
        fold = self._reasoning[call] = CollapsibleLine() if known is None else known
        fold.set_text(f"reasoning · {len(text.split()):,} words", text)
        if known is None:
            await self._add(fold, before=self._answers.get(call))

    async def _show_tool(self, change: changes.ToolShown) -> None:
        known = self._tools.get(change.tool_call_id)
        fold, shown = known or (CollapsibleLine(), change)
        if change.status in _TOOL_STATES and shown.status not in _TOOL_STATES:
            return  # the result is shown already
        arguments = change.arguments or shown.arguments or "{}"
        given = "" if arguments == "{}" else f" {safe_line(arguments, _ARGUMENTS_WIDTH)}"
        state = _TOOL_STATES.get(change.status, change.status)
        time = "" if change.seconds is None else f" · {change.seconds:.1f} s"
        result = f"\n{change.result}" if change.result else ""
        fold.set_text(f"⚙ {change.name}{given} · {state}{time}", f"arguments: {arguments}{result}")
        fold.set_class(change.status in ("failed", "skipped", "denied"), "-failed")
        self._tools[change.tool_call_id] = (fold, replace(change, arguments=arguments))
        if known is None:
            await self._add(fold)

    async def tool_asks(self, tool_call_id: str) -> None:
        """Shows that the tool call waits for a decision."""
        if tool_call_id in self._tools:
            await self._show_tool(replace(self._tools[tool_call_id][1], status="asks"))

    def _set_end(self, words: str) -> None:
        self._end.update(Content(words))
        self._end.display = bool(words)

    async def _add(self, view: Widget, *, before: Widget | None = None) -> None:
        place = before or self._end
        if self.is_attached:
            await self.mount(view, before=place)
        else:
            self._prepared.insert(self._prepared.index(place), view)


def _new_lines(change: changes.TurnChange, *, is_first: bool, is_known: bool) -> int:
    """How many lines the change adds at the end; the first piece counts as at least one."""
    match change:
        case changes.PromptShown() if not is_known:
            return 1 + change.text.count("\n")
        case changes.TextGrew(kind="answer"):
            return max(change.piece.count("\n"), int(is_first))
        case changes.ToolShown(status="pending"):
            return 1
        case changes.TurnEnded() if change.words:
            return 1
        case _:
            return 0


VIEWS_MAX = 120
VIEWS_KEPT = 80
SCREENS_LAID_OUT = 1


class Transcript(VerticalScroll, can_focus=False):
    """The conversation: a view per turn, notices between them.

    It follows the end of the text unless the person scrolled up; then it stays, and counts new
    lines. Scrolling to the top reads older messages. Only views near the visible part are laid
    out; the others keep only their height. Views far above are dropped while the end is read,
    and read again when the person scrolls there.
    """

    DEFAULT_CSS = """
    Transcript {
        height: 1fr;
        padding: 1 0 0 0;
        scrollbar-size-vertical: 1;
        scrollbar-color: $panel;
        scrollbar-background: $background;
        .notice { height: auto; margin: 0 2 1 2; color: $text-muted; }
        .notice.-error { color: $text-error; }
        .card { height: auto; margin: 0 2 1 2; padding: 0 1; border: round $panel; }
    }
    """

    def __init__(self, hint: NewerHint, read_older: Callable[[], object]) -> None:
        super().__init__()
        self._hint = hint
        self._read_older = read_older
        self.follows = True
        self.has_older = False
        self.is_raw = False
        self._new = 0
        self._is_going = False
        """Whether it is scrolling to an older turn; views added above must not scroll it back."""
        self._folds_open = False
        self._turns: dict[str, TurnView] = {}
        self._unsent: dict[str, TurnView] = {}
        self._card: Static | None = None

    def on_mount(self) -> None:
        self.anchor()

    @property
    def turns(self) -> list[TurnView]:
        return list(self.query_children(TurnView))

    @property
    def first_seq(self) -> int:
        """The seq of the oldest prompt that is shown; older messages are before it."""
        return next((turn.seq for turn in self.turns if turn.seq), 0)

    # Content

    async def start_over(self, turns: changes.Turns) -> None:
        self._turns.clear()
        self._unsent.clear()
        self._card = None
        self._count(0)
        with self.app.batch_update():
            await self.remove_children()
            await self._show_turns(turns, before=None)
        self.go_to_end()

    async def add_older(self, turns: changes.Turns) -> None:
        """Adds turns on top; the visible part stays in its place on the screen."""
        first = self.children[0] if self.children else None
        height = self.virtual_size.height
        await self._show_turns(turns, before=first)

        def stay() -> None:
            if not self._is_going:
                grown = self.virtual_size.height - height
                self.scroll_relative(y=grown, animate=False, immediate=True, force=True)

        self.call_after_refresh(stay)

    async def _show_turns(self, turns: changes.Turns, *, before: Widget | None) -> None:
        views: list[TurnView] = []
        for turn_id, turn_changes in turns:
            view = TurnView(turn_id, is_raw=self.is_raw)
            self._turns.setdefault(turn_id, view)
            for change in turn_changes:
                await view.apply(change)
            views.append(view)
        await self.mount_all(views, before=before)

    async def show_card(self, text: str) -> None:
        """Shows an introduction in an empty conversation, until the first prompt."""
        self._remove_card()
        self._card = Static(Content(text), classes="card", markup=False)
        await self.mount(self._card, before=0)

        def show_beginning() -> None:
            if self.max_scroll_y > 0:  # it is higher than the screen
                self.look_at_top()

        self.call_after_refresh(show_beginning)

    def _remove_card(self) -> None:
        """Does not wait for the removal, since a second prompt would overtake the first."""
        if self._card is not None:
            card, self._card = self._card, None
            card.remove()
            self.go_to_end()

    async def apply(self, change: changes.TurnChange, *, waits: str = "") -> None:
        """Applies a change. `waits` is shown at a prompt whose turn has not begun."""
        message_id = change.message_id if isinstance(change, changes.PromptShown) else None
        if change.turn_id not in self._turns and message_id in self._unsent:
            view = self._turns[change.turn_id] = self._unsent.pop(message_id)
            view.turn_id = change.turn_id
        if isinstance(change, changes.PromptShown) and change.continues:
            self._join(change.turn_id)
        if isinstance(change, changes.TurnEnded) and not change.has_begun:
            await self._remove_turn(change.turn_id)
            return
        is_known = change.turn_id in self._turns
        if not self.follows:
            new = _new_lines(change, is_first=not self._new, is_known=is_known)
            self._count(self._new + new)
        if not is_known:
            self._remove_card()
            self._turns[change.turn_id] = TurnView(change.turn_id, is_raw=self.is_raw)
        view = self._turns[change.turn_id]
        await view.apply(change)
        if not is_known:
            await self.mount(view)
        if waits:
            view.wait(waits)

    def _join(self, turn_id: str) -> None:
        """Has the last turn show the answer of that one, which goes on with it."""
        if turn_id not in self._turns and self._turns:
            last = self._turns[turn_id] = next(reversed(self._turns.values()))
            last.join(turn_id)

    async def begin(self, prompt: changes.PromptShown) -> None:
        """Shows our own prompt before its receipt is received."""
        self._remove_card()
        view = TurnView("")
        self._unsent[prompt.message_id or ""] = view
        await view.apply(prompt)
        view.wait("… sending")
        await self.mount(view)
        self.go_to_end()

    async def take_back(self, message_id: str) -> None:
        """Removes a prompt that was refused."""
        if view := self._unsent.pop(message_id, None):
            await view.remove()

    async def tool_asks(self, tool_call_id: str) -> None:
        for turn in self.turns:
            await turn.tool_asks(tool_call_id)

    async def _remove_turn(self, turn_id: str) -> None:
        """Removes a prompt that was taken back before its turn began."""
        view = self._turns.pop(turn_id, None)
        # A view may also show the turn that this one goes on with.
        if view is not None and view not in self._turns.values():
            await view.remove()

    async def add_notice(self, notice: changes.NoticeShown) -> None:
        words = Static(Content(notice.text), classes="notice", markup=False)
        words.set_class(notice.is_error, "-error")
        await self.mount(words)

    async def drop_oldest(self) -> bool:
        """Removes old views while the person reads at the end; returns whether there were any."""
        if not self.follows or len(self.children) <= VIEWS_MAX:
            return False
        gone = self.children[:-VIEWS_KEPT]
        for view in gone:
            if isinstance(view, TurnView):
                for turn_id in [turn_id for turn_id, one in self._turns.items() if one is view]:
                    del self._turns[turn_id]
        self.has_older = True
        with self.app.batch_update():
            await self.remove_children(gone)
        return True

    def hide_far_turns(self) -> None:
        """Hides the content of views far from the visible part. The last two, which may still
        grow, are always laid out."""
        height = max(1, self.size.height)
        first = self.scroll_y - SCREENS_LAID_OUT * height
        last = self.scroll_y + (SCREENS_LAID_OUT + 1) * height
        top = 0
        views = list(self.children)
        for view in views:
            bottom = top + view.outer_size.height + view.styles.margin.height
            if isinstance(view, TurnView):
                view.show_content(view in views[-2:] or (bottom >= first and top <= last))
            top = bottom

    def show_all_content(self) -> None:
        """Lays out all views, because their heights will change. Far views are hidden again once
        the heights are known."""
        for turn in self.turns:
            turn.show_content()
        self.call_after_refresh(self.hide_far_turns)

    def on_resize(self) -> None:
        self.show_all_content()

    def open_or_close_folds(self) -> None:
        self._folds_open = not self._folds_open
        self.show_all_content()
        for fold in self.query(CollapsibleLine):
            if fold.is_open != self._folds_open:
                fold.action_open_or_close()

    async def show_raw(self, is_raw: bool) -> None:
        self.is_raw = is_raw
        self.show_all_content()
        for turn in self.turns:
            await turn.show_raw(is_raw)

    # Scrolling

    def go_to_end(self) -> None:
        self.follows = True
        self._count(0)
        self.anchor()

    def look_at_top(self) -> None:
        self.release_anchor()
        self.scroll_home(animate=False)

    @asynccontextmanager
    async def going_to(self, seq: int) -> AsyncIterator[None]:
        """Wraps the reading of older messages; then marks the turn of that message and scrolls
        to it."""
        self.release_anchor()
        self._is_going = True
        try:
            yield
        except BaseException:
            self._is_going = False
            raise
        turns = [turn for turn in self.turns if turn.seq and turn.seq <= seq]
        for turn in self.turns:
            turn.set_class(turn in turns[-1:], "-found")
        self.show_all_content()

        def go_there() -> None:
            self._is_going = False
            self.release_anchor()
            if turns:
                self.scroll_to_widget(turns[-1], animate=False, top=True, force=True)

        # The heights are known after the second refresh.
        self.call_after_refresh(lambda: self.call_after_refresh(go_there))

    def release_anchor(self) -> None:
        super().release_anchor()
        self.follows = False

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.call_next(self.hide_far_turns)
        if new_value >= self.max_scroll_y and not self.follows and not self._is_going:
            self.follows = True
            self._count(0)
        if new_value <= 0 and old_value > 0 and self.has_older:
            self._read_older()

    def _count(self, new: int) -> None:
        if new != self._new:
            self._new = new
            self._hint.set_count(new)


class NewerHint(Static):
    """Shows that there is new text below, while the person reads further up."""

    DEFAULT_CSS = """
    NewerHint {
        height: 1;
        display: none;
        content-align: center middle;
        color: $text-primary;
        pointer: pointer;
    }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)

    def set_count(self, count: int) -> None:
        self.display = count > 0
        lines = "1 new line" if count == 1 else f"{count:,} new lines"
        self.update(Content(f"↓ {lines} · Ctrl+End"))

    async def on_click(self, event: Click) -> None:
        event.stop()
        await self.run_action("app.go_to_end")
