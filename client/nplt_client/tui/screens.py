"""The windows that open over the chat: lists to choose from."""

from __future__ import annotations

import re
from asyncio import sleep
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import SequenceMatcher, get_close_matches
from functools import partial
from typing import ClassVar

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Key, Paste, Resize
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import WorkType

from nplt_client.chat.approvals import ApprovalWanted, pending_approval
from nplt_client.client import Client
from nplt_client.errors import NpltError
from nplt_client.render.reports import row_flags, unread_words
from nplt_client.render.text import pad, safe, safe_line, shorten, width_of, word_in
from nplt_client.tui.keyboard import handle_key_now
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import SearchHit, SessionRow


class SearchInput(Input):
    """The search line. It handles all keys of the picker, in the order they were pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "screen.move(1)", "Next", show=False),
        Binding("up", "screen.move(-1)", "Previous", show=False),
        Binding("pagedown", "screen.move(10)", "Further", show=False),
        Binding("pageup", "screen.move(-10)", "Back", show=False),
        Binding("enter", "screen.enter", "Take it", show=False),
        Binding("escape,ctrl+c", "screen.leave", "Back", show=False),
        Binding("ctrl+n", "screen.rename", "Rename", show=False),
        Binding("ctrl+x", "screen.delete", "Delete", show=False),
        Binding("ctrl+z", "screen.undelete", "Bring back", show=False),
        Binding("ctrl+y", "screen.decide(True)", "Allow", show=False),
        Binding("ctrl+d", "screen.decide(False)", "Deny", show=False),
    ]

    async def _on_key(self, event: Key) -> None:
        await handle_key_now(self, event, self.write)

    def write(self, text: str) -> None:
        self.replace(text, *self.selection)

    def _on_paste(self, event: Paste) -> None:
        event.prevent_default()
        event.stop()
        self.write(safe_line(event.text))


_ROWS_MIN = 8
_SMALL_ROWS = 20
"""The picker fills a screen that has fewer rows."""


class PickerScreen(ModalScreen[str | None]):
    """A window with a search line and a list of matches.

    Subclasses decide which rows match.
    """

    DEFAULT_CSS = """
    PickerScreen {
        align: center middle;
        #window {
            width: 90%; max-width: 120; height: 80%;
            border: round $primary; background: $surface; padding: 0 1;
        }
        Input, Input:focus {
            border: none; height: 1; margin: 0 0 1 0; padding: 0; background: transparent;
        }
        OptionList { height: 1fr; border: none; background: transparent; padding: 0; }
        OptionList:nocolor > .option-list--option-highlighted { text-style: reverse; }
        #below { height: auto; max-height: 8; color: $text-muted; margin: 1 0 0 0; }
        #keys { height: 1; color: $text-muted; }
        &.-small {
            #window { width: 100%; height: 100%; padding: 0; }
            Input, Input:focus { margin: 0; }
            #below { max-height: 2; margin: 0; }
        }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "leave", "Back", show=False),
    ]
    KEYS_HELP = "Enter takes it · Esc goes back"

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self._matched: str | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="window") as window:
            window.border_title = Content(self._title)
            yield SearchInput(placeholder="type to find", id="wanted")
            yield OptionList(id="found", markup=False)
            yield Static(id="below", markup=False)
            yield Static(Content(self.KEYS_HELP), id="keys", markup=False)

    def on_mount(self) -> None:
        self.app.clear_notifications()  # they would cover the window
        self.query_one("#found").can_focus = False
        self.query_one(SearchInput).focus()
        self.begin()

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.height < _SMALL_ROWS, "-small")
        self.call_after_refresh(self.show_matches)

    def begin(self) -> None:
        self.show_matches()

    def give_way(self, words: str, rows: int) -> None:
        """Leaves the last `rows` of the screen to an approval question. If there is no room for
        both, the border shows `words`, which are empty if there is no question."""
        window = self.query_one("#window")
        window.border_subtitle = Content(shorten(words, max(10, self.size.width - 8)))
        left = self.size.height - rows
        has_room = bool(words) and left >= _ROWS_MIN
        self.styles.align_vertical = "top" if has_room else "middle"
        window.styles.max_height = left if has_room else None

    def rows(self, wanted: str) -> Sequence[Option]:
        raise NotImplementedError

    def details_of(self, key: str) -> str:
        """Returns the details of the marked row, which are shown below the list."""
        return ""

    @property
    def wanted(self) -> str:
        return self.query_one(SearchInput).value

    @property
    def is_open(self) -> bool:
        """Whether it is open; False while it is being closed, when its widgets are removed."""
        return self.is_attached and bool(self.query(OptionList))

    @property
    def marked(self) -> str | None:
        options = self.query_one(OptionList)
        if options.highlighted is None or not options.option_count:
            return None
        return options.get_option_at_index(options.highlighted).id

    def show_matches(self) -> None:
        """Lists the rows that match; the marked row stays marked if it is among them."""
        options, marked = self.query_one(OptionList), self.marked
        rows = self.rows(self.wanted)
        self._matched = self.wanted
        options.set_options(rows)
        keys = [row.id for row in rows]
        if rows:
            options.highlighted = keys.index(marked) if marked in keys else 0
        else:
            self.query_one("#below", Static).update(Content("nothing matches"))

    # Textual calls the `on_…` methods of all base classes, so subclasses override these instead.

    def typed_changed(self, typed: str) -> None:
        self.show_matches()

    def show_details(self, key: str) -> None:
        self.query_one("#below", Static).update(Content(self.details_of(key)))

    def catch_up(self) -> None:
        """Updates the list before a key that depends on it is handled."""
        if self.wanted != self._matched:
            self._matched = self.wanted
            self.typed_changed(self.wanted)

    def on_input_changed(self) -> None:
        self.catch_up()

    def action_enter(self) -> None:
        self.catch_up()
        if self.marked is not None:
            self.dismiss(self.marked)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if event.option.id == self.marked:  # otherwise the list has changed since
            self.show_details(event.option.id or "")

    def action_move(self, step: int) -> None:
        self.catch_up()
        options = self.query_one(OptionList)
        if options.option_count:
            place = (options.highlighted or 0) + step
            options.highlighted = max(0, min(place, options.option_count - 1))

    def action_leave(self) -> None:
        self.dismiss(None)


_SCORE_MIN = 70.0
_LOOKED_AT_CHARACTERS = 500
_NAME_CHARACTERS = 100


def ranked(wanted: str, texts: Mapping[str, str]) -> list[str]:
    """Returns the keys of the matching texts, best first. The first line of a text is its name."""
    typed = " ".join(re.findall(r"\w+", wanted.lower())) or wanted.strip().lower()
    if not typed:
        return list(texts)
    scores = {key: score(typed, text) for key, text in texts.items()}
    fitting = [key for key, points in scores.items() if points >= _SCORE_MIN]
    return sorted(fitting, key=lambda key: -scores[key])


def score(typed: str, text: str) -> float:
    """Rates a text from 0 to 100. Exact words rank first, in the name before elsewhere; then
    the letters in their order in the name, as in `fzf`; then similar words."""
    looked_at = text[:_LOOKED_AT_CHARACTERS].lower()
    name = looked_at.partition("\n")[0][:_NAME_CHARACTERS]
    words = typed.split()
    if typed in name:
        return 100.0
    if typed in looked_at:
        return 98.0
    if all(word in looked_at for word in words):
        return 95.0
    letters = min((_letters_score(word, name) for word in words), default=0.0)
    if letters or len(typed) < 3:
        return letters
    there = set(looked_at.split())
    return min((_similarity_score(word, there) for word in words), default=0.0)


def _similarity_score(word: str, words: Iterable[str]) -> float:
    """Rates the most similar of the words up to 90; 0 if none is similar enough."""
    similar = get_close_matches(word, words, 1, _SCORE_MIN / 90)
    return 90 * SequenceMatcher(None, similar[0], word).ratio() if similar else 0.0


def _letters_score(word: str, name: str) -> float:
    """Rates a name that has these letters in this order from 70 to 90, higher if they are
    adjacent or begin words; any other name is 0."""
    place, gaps = -1, 0
    for letter in word:
        found = name.find(letter, place + 1)
        if found < 0:
            return 0.0
        begins_word = found == 0 or not name[found - 1].isalnum()
        gaps += found > place + 1 and not begins_word
        place = found
    return 90.0 - 20.0 * gaps / len(word)


def age(then: str, now: datetime) -> str:
    """Formats the age in one unit: `3 min`, `2 d`."""
    try:
        seconds = (now - datetime.fromisoformat(then)).total_seconds()
    except (ValueError, TypeError):
        return ""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "now"


_SHOWN_MAX = 200
_ABOUT_LINES_MAX = 6


class ChoicePicker(PickerScreen):
    """Picks one of several texts: earlier prompts, models, themes."""

    def __init__(
        self,
        title: str,
        choices: Sequence[str],
        *,
        marked: str | None = None,
        about: Mapping[str, str] | None = None,
    ) -> None:
        """`marked`: the current choice. `about` describes choices in a few words."""
        super().__init__(title)
        self._choices = {str(place): choice for place, choice in enumerate(choices)}
        self._first_marked = marked
        self._about = about or {}

    def begin(self) -> None:
        super().begin()
        if self._first_marked in (choices := list(self._choices.values())):
            self.action_move(choices.index(self._first_marked))

    def rows(self, wanted: str) -> Sequence[Option]:
        found = ranked(wanted, self._choices)[:_SHOWN_MAX]
        width = max((width_of(self._choices[key]) for key in found), default=0)
        return [Option(Content(self._row(self._choices[key], width)), id=key) for key in found]

    def _row(self, choice: str, width: int) -> str:
        row = safe_line(choice, 110)
        if self._about:
            is_current = " · current" if choice == self._first_marked else ""
            row = f"{pad(row, width)}  {safe_line(self._about.get(choice, ''))}{is_current}"
        room = (self.query_one(OptionList).size.width or self.app.size.width - 4) - _SCROLLBAR
        return shorten(row.rstrip(), max(room, _NAME_WIDTH_MIN))

    def details_of(self, key: str) -> str:
        lines = safe(self._choices.get(key, "")).split("\n")
        return "\n".join(lines[:_ABOUT_LINES_MAX]) if len(lines) > 1 else ""


_NAME_WIDTH_MAX = 40
_NAME_WIDTH_MIN = 16
_FACTS_WIDTH = 28
_FACTS_WIDTH_SMALL = 16
_SCROLLBAR = 2
_SEARCH_PAUSE_SECONDS = 0.3
_PREVIEW_PAUSE_SECONDS = 0.1
_PREVIEW_MESSAGES = 12
_WANTED_CHARACTERS_MIN = 2
HITS_MAX = 100


class SessionPicker(PickerScreen):
    """Picks a conversation, by name, first words or content.

    Names and previews are searched at each key, and the server searches contents when typing
    pauses. Below the list are the last messages of the marked conversation, or those around
    the match. A deletion can be undone as long as the window is open.
    """

    KEYS_HELP = "Enter goes there · Ctrl+N renames · Ctrl+X deletes · Esc goes back"
    KEYS_HELP_SMALL = "Enter · ^N rename · ^X delete · Esc"
    DEFAULT_CSS = """
    SessionPicker {
        #below { height: 40%; max-height: 40%; }
        &.-small #below { height: auto; max-height: 2; }
    }
    """

    def __init__(self, sessions: Sequence[SessionRow], client: Client, wanted: str = "") -> None:
        super().__init__("conversations")
        self._sessions = {row.session_id: row for row in sessions}
        self._client = client
        self._first_wanted = wanted
        self._inside: dict[str, SearchHit] = {}
        self._previews: dict[tuple[str, int], Sequence[JsonObject]] = {}
        self._questions: dict[str, ApprovalWanted] = {}
        """The tool calls that conversations ask about, once they are shown."""
        self._renaming: str | None = None
        self._deleting: str | None = None
        self._deleted: list[SessionRow] = []

    def begin(self) -> None:
        super().begin()
        self._write(self._first_wanted)

    def on_resize(self, event: Resize) -> None:
        self._show_usual_keys()

    def rows(self, wanted: str) -> Sequence[Option]:
        texts = {key: f"{row.name}\n{row.preview}" for key, row in self._sessions.items()}
        found = ranked(wanted, texts)
        inside = [key for key in self._inside if key in self._sessions and key not in found]
        now = datetime.now(UTC)
        return [self._row(self._sessions[key], now) for key in (*found, *inside)]

    def _row(self, row: SessionRow, now: datetime) -> Option:
        width = (self.query_one(OptionList).size.width or self.app.size.width - 4) - _SCROLLBAR
        facts, facts_width = f"{age(row.updated_at, now):>7} ", _FACTS_WIDTH_SMALL
        if width >= _NAME_WIDTH_MIN + _FACTS_WIDTH:
            facts, facts_width = f"{facts}{row.message_count:>5} msgs  ", _FACTS_WIDTH
        name_width = max(_NAME_WIDTH_MIN, min(_NAME_WIDTH_MAX, width - facts_width))
        name = pad(safe_line(row.name or "(no name)", name_width), name_width)
        words = ["" if row.state == "idle" else safe_line(row.state)]
        words += ["here" if row.is_current else "", *unread_words(row), *row_flags(row)]
        line = f"{name} {facts}{' '.join(filter(None, words))}"
        return Option(Content(shorten(line, max(width, _NAME_WIDTH_MIN))), id=row.session_id)

    def details_of(self, key: str) -> str:
        row = self._sessions.get(key)
        if row is None:
            return ""
        if key == self._deleting:
            return f"it is {safe_line(row.state)}: Ctrl+X once more deletes it anyway"
        if (wanted := self._questions.get(key)) is not None:
            asked = f"{wanted.tool_name} {wanted.line}"
            return f"It asks to run {shorten(asked, 400)}\nCtrl+Y allows it · Ctrl+D denies it"
        hit, seq = self._inside.get(key), self.seq_found_in(key)
        about = f"… {safe_line(hit.snippet, 160)}" if hit else safe_line(row.preview, 200)
        if self.has_class("-small"):
            return about
        if (key, seq) not in self._previews:
            return f"{safe_line(row.model)} · {safe_line(key)}\n{about}"
        size = self.query_one("#below").size
        page, count = self._previews[key, seq], max(2, size.height)
        # They include the message that matched; without a match they are the last ones.
        places = [place for place, message in enumerate(page) if message.get("seq") == seq]
        last = min(len(page), places[0] + count // 2 + 1) if places else len(page)
        lines: list[str] = []
        for message in page[max(0, last - count) : last]:
            who = "you ▸" if message.get("role") == "user" else "    ◂"
            lines.append(safe_line(f"{who} {word_in(message, 'content')}", max(20, size.width)))
        return "\n".join(lines)

    # Contents, from the server

    def typed_changed(self, typed: str) -> None:
        if self._renaming is not None:
            return
        self._deleting = None
        self._inside = {}
        super().typed_changed(typed)
        if len(typed.strip()) >= _WANTED_CHARACTERS_MIN:
            looking: WorkType[None] = partial(self._look_inside, typed)
            self.run_worker(looking, exclusive=True, group="inside")

    async def _look_inside(self, wanted: str) -> None:
        await sleep(_SEARCH_PAUSE_SECONDS)  # no search for every letter
        # Only the newest match of each conversation is kept.
        inside: dict[str, SearchHit] = {}
        looked_at = 0
        try:
            async for hit in self._client.search(wanted):
                if hit.seq:
                    inside.setdefault(hit.session_id, hit)
                looked_at += 1
                if looked_at == HITS_MAX:
                    break
        except NpltError:
            return  # names and previews are still searched
        self._inside = inside
        if self.is_open and self.wanted == wanted and self._inside:
            self.show_matches()
            self._show_marked()

    async def _load_preview(self, key: str, seq: int) -> None:
        await sleep(_PREVIEW_PAUSE_SECONDS)  # no request for rows that are only passed
        try:
            page = await self._client.history(_PREVIEW_MESSAGES, session_id=key, around=seq or None)
        except NpltError:
            return  # the row still shows its name and first words
        # Messages that only call tools are left out.
        shown_messages = [
            message for message in page.messages if word_in(message, "content").strip()
        ]
        self._previews[key, seq] = shown_messages
        if self.is_open and self.marked == key:
            super().show_details(key)

    # Deciding about a tool call

    async def _load_question(self, key: str) -> None:
        try:
            wanted = await pending_approval(self._client, key)
        except NpltError:
            return  # the row shows that it asks
        if wanted is not None:
            self._questions[key] = wanted
            if self.is_open and self.marked == key:
                super().show_details(key)

    def action_decide(self, allow: bool) -> None:
        """Decides about the tool call that is shown; one that is not shown can't be decided."""
        self.catch_up()
        if (key := self.marked) is not None and key in self._questions:
            self.run_worker(self._attempt(self._decide(key, self._questions.pop(key), allow)))

    async def _decide(self, key: str, wanted: ApprovalWanted, allow: bool) -> None:
        await self._client.approve(wanted.approval_id, allow=allow)
        self._sessions[key] = replace(self._sessions[key], state="running")

    # Renaming and deleting

    def action_rename(self) -> None:
        self.catch_up()
        if self._renaming is None and (key := self.marked) is not None:
            self._renaming = key
            self._write(self._sessions[key].name)
            self._show_keys("Enter gives it this name · Esc leaves it as it is")

    def action_enter(self) -> None:
        if self._renaming is None:
            super().action_enter()
            return
        if name := self.wanted.strip():
            self.run_worker(self._attempt(self._rename(self._renaming, name)))
        self._stop_renaming()

    async def _rename(self, key: str, name: str) -> None:
        await self._client.rename(name, key)
        self._sessions[key] = replace(self._sessions[key], name=name)

    def action_delete(self) -> None:
        """Deletes the marked conversation. If a turn runs there, which can't be undone, it needs
        a second press."""
        self.catch_up()
        key = self.marked
        if key is None or self._renaming is not None:
            return
        if self._deleting != key and self._sessions[key].state not in ("idle", ""):
            self._deleting = key
            self._show_marked()
            return
        self._deleting = None
        self.run_worker(self._attempt(self._delete(key)))

    async def _delete(self, key: str) -> None:
        await self._client.delete(key)
        self._deleted.append(self._sessions.pop(key))

    def action_undelete(self) -> None:
        if self._deleted and self._renaming is None:
            self.run_worker(self._attempt(self._undelete(self._deleted.pop())))

    async def _undelete(self, row: SessionRow) -> None:
        try:
            back = await self._client.undelete(row.session_id)
        except NpltError:
            self._deleted.append(row)
            raise
        self._sessions = {back.session_id: back, **self._sessions}

    async def _attempt(self, work: Awaitable[None]) -> None:
        failure = ""
        try:
            await work
        except NpltError as error:
            failure = safe_line(error.message)
        if self.is_open:
            self.show_matches()
            self._show_marked()
            self._show_usual_keys()
            if failure:
                self._show_keys(f"✗ {failure}")

    def _show_marked(self) -> None:
        if self.marked is not None:
            self.show_details(self.marked)

    def show_details(self, key: str) -> None:
        if key != self._deleting:
            self._deleting = None
        super().show_details(key)
        seq = self.seq_found_in(key)
        if not self.has_class("-small") and (key, seq) not in self._previews:
            # A function, not a coroutine: that could be cancelled before its first step.
            loading: WorkType[None] = partial(self._load_preview, key, seq)
            self.run_worker(loading, exclusive=True, group="preview")
        row = self._sessions.get(key)
        if row is not None and row.state == "asking" and key not in self._questions:
            asking: WorkType[None] = partial(self._load_question, key)
            self.run_worker(asking, exclusive=True, group="question")

    def seq_found_in(self, key: str) -> int:
        """The seq of the message that matched in that conversation; 0 if none did."""
        hit = self._inside.get(key)
        return hit.seq if hit else 0

    def action_leave(self) -> None:
        if self._renaming is None:
            super().action_leave()
        else:
            self._stop_renaming()

    def _stop_renaming(self) -> None:
        self._renaming = None
        self._write("")
        self._show_usual_keys()
        self.typed_changed("")

    def _write(self, text: str) -> None:
        typed = self.query_one(SearchInput)
        typed.value = safe_line(text)
        typed.cursor_position = len(typed.value)

    def _show_usual_keys(self) -> None:
        if self._deleted:
            name = safe_line(self._deleted[-1].name or "it", 16)
            self._show_keys(f"deleted {name}; Ctrl+Z brings it back")
            return
        is_narrow = self.app.size.width * 9 // 10 - 4 < len(self.KEYS_HELP)
        self._show_keys(self.KEYS_HELP_SMALL if is_narrow else self.KEYS_HELP)

    def _show_keys(self, words: str) -> None:
        self.query_one("#keys", Static).update(Content(words))
