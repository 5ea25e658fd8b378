"""The session picker: every conversation, found by name, first words or content.

What is typed is looked for here at once (names and previews), and on the server
(contents) as soon as the typing pauses. Renaming and deleting are asked of the
one who opened this window, which shows the outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from textual.content import Content
from textual.widgets import Static

from nplt_client.errors import NpltError
from nplt_client.fullscreen.fuzzy_screen import FuzzyScreen, Row, WantedLine
from nplt_client.fullscreen.picking import age, ranked
from nplt_client.fullscreen.safe_text import safe_line
from nplt_client.tables import pad, shorten
from nplt_protocol.replies import SessionRow

_NAME_WIDTH = 40
_SEARCH_PAUSE_SECONDS = 0.3
_WANTED_CHARACTERS_MIN = 2


class Shelf(Protocol):
    """What the picker may do with conversations."""

    async def rename(self, session_id: str, name: str) -> None: ...
    async def delete(self, session_id: str) -> None: ...
    async def find_inside(self, wanted: str) -> dict[str, str]:
        """Conversations whose content has these words, with what was found."""
        ...


class SessionScreen(FuzzyScreen):
    WINDOW_TITLE = "conversations"
    KEYS_HELP = "Enter goes there · Ctrl+N renames · Ctrl+X deletes · Esc goes back"

    def __init__(self, sessions: Sequence[SessionRow], shelf: Shelf, wanted: str = "") -> None:
        super().__init__()
        self._sessions = {row.session_id: row for row in sessions}
        self._shelf = shelf
        self._first_wanted = wanted
        self._inside: dict[str, str] = {}
        self._renaming: str | None = None
        self._deleting: str | None = None

    def begin(self) -> None:
        super().begin()
        self._write(self._first_wanted)

    def rows(self, wanted: str) -> Sequence[Row]:
        texts = {key: f"{row.name} {row.preview}" for key, row in self._sessions.items()}
        found = ranked(wanted, texts)
        inside = [key for key in self._inside if key in self._sessions and key not in found]
        now = datetime.now(UTC)
        return [self._row(key, now) for key in (*found, *inside)]

    def _row(self, key: str, now: datetime) -> Row:
        row = self._sessions[key]
        name = pad(safe_line(row.name or "(no name)", _NAME_WIDTH), _NAME_WIDTH)
        facts = f"{age(row.updated_at, now):>7}  {row.message_count:>5} msgs  {_marks(row)}"
        return Row(key=key, shown=Content(f"{name} {shorten(facts, 50)}"))

    def about(self, key: str) -> str:
        row = self._sessions.get(key)
        if row is None:
            return ""
        if key == self._deleting:
            return f"Ctrl+X once more moves {safe_line(row.name, 60)!r} to the trash"
        lines = [safe_line(row.preview, 200), f"{safe_line(row.model)} · {key}"]
        if key in self._inside:
            lines.insert(0, f"… {safe_line(self._inside[key], 160)}")
        return "\n".join(line for line in lines if line)

    # Contents, from the server

    def type_on(self, typed: str) -> None:
        if self._renaming is not None:
            return
        self._deleting = None
        self._inside = {}
        super().type_on(typed)
        if len(typed.strip()) >= _WANTED_CHARACTERS_MIN:
            self.run_worker(self._look_inside(typed), exclusive=True, group="inside")

    async def _look_inside(self, wanted: str) -> None:
        from asyncio import sleep

        await sleep(_SEARCH_PAUSE_SECONDS)  # a search for every letter would be a waste
        try:
            self._inside = await self._shelf.find_inside(wanted)
        except NpltError:
            return  # names and previews are still there to be searched
        if self.is_attached and self.wanted == wanted and self._inside:
            self.look()

    # Renaming and deleting

    def action_rename(self) -> None:
        self.catch_up()
        if self._renaming is None and (key := self.marked) is not None:
            self._renaming = key
            self._write(self._sessions[key].name)
            self._say("Enter gives it this name · Esc leaves it as it is")

    def enter(self, typed: str) -> None:
        if self._renaming is None:
            super().enter(typed)
            return
        key, name = self._renaming, typed.strip()
        if name:
            self.run_worker(self._do(self._rename(key, name)))
        self._stop_renaming()

    async def _rename(self, key: str, name: str) -> None:
        await self._shelf.rename(key, name)
        self._sessions[key] = replace(self._sessions[key], name=name)

    def action_delete(self) -> None:
        self.catch_up()
        key = self.marked
        if key is None or self._renaming is not None:
            return
        if self._deleting != key:
            self._deleting = key
            self.mark(key)
            return
        self._deleting = None
        self.run_worker(self._do(self._delete(key)))

    async def _delete(self, key: str) -> None:
        await self._shelf.delete(key)
        del self._sessions[key]

    async def _do(self, deed: Awaitable[None]) -> None:
        try:
            await deed
        except NpltError as error:
            self.notify(safe_line(error.message), severity="error", markup=False)
        if self.is_attached:
            self.look()

    def mark(self, key: str) -> None:
        if key != self._deleting:
            self._deleting = None
        super().mark(key)

    def action_leave(self) -> None:
        if self._renaming is None:
            super().action_leave()
        else:
            self._stop_renaming()

    def _stop_renaming(self) -> None:
        self._renaming = None
        self._write("")
        self._say(self.KEYS_HELP)
        self.type_on("")

    def _write(self, text: str) -> None:
        self.query_one(WantedLine).replace_text(text)

    def _say(self, words: str) -> None:
        self.query_one("#keys", Static).update(Content(words))


def _marks(row: SessionRow) -> str:
    said: list[tuple[str, bool]] = [
        (safe_line(row.state), row.state != "idle"),
        ("here", row.is_current),
        ("pinned", row.pinned),
        ("archived", row.archived),
        ("damaged", row.damaged),
    ]
    return " ".join(word for word, holds in said if holds)
