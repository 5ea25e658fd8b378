"""The conversation on the screen: a view per turn, remarks between them.

It follows the end of the text unless the person scrolled up; then it stays
where it is, and counts what is new. Scrolling to the top asks for older
messages (`OlderWanted`). So that drawing stays quick in a conversation of any
length, only views near what is looked at are laid out, the others rest; and
those far above are let go while the person reads at the end, and read again
when scrolled to.
"""

from __future__ import annotations

from collections.abc import Iterable

from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from nplt_client.fullscreen.changes import OfTurn, PromptShown, TextStands, Told
from nplt_client.fullscreen.turn_view import TurnView

VIEWS_MAX = 120
VIEWS_KEPT = 80
SCREENS_AWAKE = 1


class Transcript(VerticalScroll, can_focus=False):
    DEFAULT_CSS = """
    Transcript {
        height: 1fr;
        padding: 1 0 0 0;
        scrollbar-size-vertical: 1;
        scrollbar-color: $panel;
        scrollbar-background: $background;
        .told { height: auto; margin: 0 2 1 2; color: $text-muted; }
        .told.-error { color: $text-error; }
    }
    """

    class OlderWanted(Message):
        """The person looks at the top of what is loaded."""

    class NewerCounted(Message):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

    def __init__(self) -> None:
        super().__init__()
        self.follows = True
        self.has_older = False
        self.is_raw = False
        self._new = 0
        self._folds_open = False
        self._turns: dict[str, TurnView] = {}
        self._unsent: dict[str, TurnView] = {}

    def on_mount(self) -> None:
        self.anchor()

    @property
    def turns(self) -> list[TurnView]:
        return list(self.query_children(TurnView))

    @property
    def first_seq(self) -> int:
        """Of the oldest prompt that is shown, to read on before it."""
        return next((turn.seq for turn in self.turns if turn.seq), 0)

    # What is shown

    async def start_over(self, turns: Iterable[tuple[str, list[OfTurn]]]) -> None:
        self._turns.clear()
        self._unsent.clear()
        self._count(0)
        with self.app.batch_update():
            await self.remove_children()
            await self._show_turns(turns, before=None)
        self.go_to_end()

    async def add_older(self, turns: Iterable[tuple[str, list[OfTurn]]]) -> None:
        """Above what is there, which stays where it is on the screen."""
        first = self.children[0] if self.children else None
        height = self.virtual_size.height
        await self._show_turns(turns, before=first)

        def stay() -> None:
            self.scroll_relative(
                y=self.virtual_size.height - height, animate=False, immediate=True, force=True
            )

        self.call_after_refresh(stay)

    async def _show_turns(
        self, turns: Iterable[tuple[str, list[OfTurn]]], *, before: Widget | None
    ) -> None:
        views: list[TurnView] = []
        for turn_id, changes in turns:
            view = TurnView(turn_id, is_raw=self.is_raw)
            self._turns.setdefault(turn_id, view)
            for change in changes:
                await view.apply(change)
            views.append(view)
        await self.mount_all(views, before=before)

    async def apply(self, change: OfTurn) -> None:
        if not self.follows and isinstance(change, PromptShown | TextStands):
            self._count(self._new + 1)
        view = self._known_view(change)
        if view is not None:
            await view.apply(change)
            return
        view = self._turns[change.turn_id] = TurnView(change.turn_id, is_raw=self.is_raw)
        await view.apply(change)
        await self.mount(view)

    async def begin(self, prompt: PromptShown) -> None:
        """Ours, before the server has said anything about it."""
        view = TurnView("")
        self._unsent[prompt.message_id or ""] = view
        await view.apply(prompt)
        view.wait("… sending")
        await self.mount(view)
        self.go_to_end()

    async def take_back(self, message_id: str) -> None:
        """It was refused, and never became a turn."""
        if view := self._unsent.pop(message_id, None):
            await view.remove()

    def wait(self, turn_id: str, words: str) -> None:
        if view := self._turns.get(turn_id):
            view.wait(words)

    async def tell(self, told: Told) -> None:
        words = Static(Content(told.text), classes="told", markup=False)
        words.set_class(told.is_error, "-error")
        await self.mount(words)

    async def let_go(self) -> bool:
        """Of what is far above, while the person reads at the end."""
        if not self.follows or len(self.children) <= VIEWS_MAX:
            return False
        gone = list(self.children)[: len(self.children) - VIEWS_KEPT]
        for view in gone:
            if isinstance(view, TurnView):
                self._turns.pop(view.turn_id, None)
        self.has_older = True
        with self.app.batch_update():
            await self.remove_children(gone)
        return True

    def tidy(self) -> None:
        """Wakes what is near, lets rest what is far. The end may still grow: it stays awake."""
        height = max(1, self.size.height)
        first = self.scroll_y - SCREENS_AWAKE * height
        last = self.scroll_y + (SCREENS_AWAKE + 1) * height
        top = 0
        views = list(self.children)
        for view in views:
            bottom = top + view.outer_size.height + view.styles.margin.height
            if isinstance(view, TurnView):
                if view in views[-2:] or (bottom >= first and top <= last):
                    view.wake()
                else:
                    view.rest()
            top = bottom

    def wake_all(self) -> None:
        """Before heights change; what is far rests again once they are known."""
        for turn in self.turns:
            turn.wake()
        self.call_after_refresh(self.tidy)

    def on_resize(self) -> None:
        self.wake_all()

    def open_or_close_folds(self) -> None:
        self._folds_open = not self._folds_open
        self.wake_all()
        for turn in self.turns:
            turn.open_or_close_folds(self._folds_open)

    async def show_raw(self, is_raw: bool) -> None:
        self.is_raw = is_raw
        self.wake_all()
        for turn in self.turns:
            await turn.show_raw(is_raw)

    def _known_view(self, change: OfTurn) -> TurnView | None:
        message_id = change.message_id if isinstance(change, PromptShown) else None
        if change.turn_id not in self._turns and message_id in self._unsent:
            view = self._turns[change.turn_id] = self._unsent.pop(message_id)
            view.turn_id = change.turn_id
        return self._turns.get(change.turn_id)

    # Where the person looks

    def go_to_end(self) -> None:
        self.follows = True
        self._count(0)
        self.anchor()

    def look_at_top(self) -> None:
        self.release_anchor()
        self.scroll_home(animate=False)

    def release_anchor(self) -> None:
        super().release_anchor()
        self.follows = False

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.call_next(self.tidy)
        if new_value >= self.max_scroll_y and not self.follows:
            self.follows = True
            self._count(0)
        if new_value <= 0 and old_value > 0 and self.has_older:
            self.post_message(self.OlderWanted())

    def _count(self, new: int) -> None:
        if new != self._new:
            self._new = new
            self.post_message(self.NewerCounted(new))
