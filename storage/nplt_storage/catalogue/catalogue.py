"""The catalogue as its owner, the store, sees it.

What only takes note returns at once and is never an error; questions see all
that was noted before them. Nothing here is awaited by an append.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from nplt_storage.catalogue.books import Books
from nplt_storage.catalogue.clerk import Clerk
from nplt_storage.catalogue.freshness import FileStamp
from nplt_storage.catalogue.learned import Gone, Learned, PromptsFound, Redacted, Survey, Touched
from nplt_storage.catalogue.ledger import Ledger
from nplt_storage.conversation.row_lists import RowPage, RowQuery, read_cursor
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.conversation.searching import (
    SearchPage,
    SearchQuery,
    cut_search_page,
    read_search_cursor,
)
from nplt_storage.conversation.snippets import query_words
from nplt_storage.errors import StorageUnavailable
from nplt_storage.facts.entries import Entry


class Catalogue:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._clerk = Clerk(ledger)

    @classmethod
    def open(cls, path: Path, *, survey: Survey) -> Catalogue:
        """Blocks shortly: opens the database, or makes it anew, and starts the thread.
        `survey` is what `catch_up` asks, and what fills the database again if it
        breaks while in use."""
        return cls(Ledger(path, survey))

    async def catch_up(self) -> None:
        """Surveys the files. Questions asked meanwhile are answered between two
        pieces, with what is known so far; so this need not be awaited to serve."""
        await self._clerk.take_in_all(self._ledger.changes)

    # Taking note: quick, in order, never an error

    def note(self, row: ConversationRow, stamp: FileStamp, *entries: Entry) -> None:
        """The conversation is like this now, after these (durable) entries."""
        self._clerk.note(Learned(row=row, stamp=stamp, entries=entries))

    def touch(self, session_id: str, at: datetime) -> None:
        self._clerk.note(Touched(session_id=session_id, at=at))

    def forget(self, session_id: str) -> None:
        self._clerk.note(Gone(session_id=session_id))

    def note_prompts(self, found: PromptsFound) -> None:
        self._clerk.note(found)

    async def learn(self, piece: Learned) -> None:
        """Like `note`, for much at once (an import, a file that was replaced): waits
        until it is taken in, so that pieces don't pile up."""
        await self._clerk.take_in(piece)

    async def redact(self, row: ConversationRow, stamp: FileStamp, seq: int) -> None:
        """Takes that message out of the index, and its words out of the bytes of the
        database's files. `row` no longer holds any of it, nor does the file."""
        await self._clerk.take_in_and_tidy(Redacted(row=row, stamp=stamp, seq=seq))

    # Questions

    async def row(self, session_id: str) -> ConversationRow | None:
        return await self._clerk.ask(lambda books: books.rows.row(session_id))

    async def known(self, session_id: str) -> tuple[ConversationRow, FileStamp] | None:
        """The row, and the file it was made from."""
        return await self._clerk.ask(lambda books: books.rows.known(session_id))

    async def list(self, user: str, query: RowQuery) -> RowPage:
        """Raises `BadCursor`."""
        after = None if query.cursor is None else read_cursor(query.cursor)
        return await self._clerk.ask(lambda books: books.rows.page(user, query, after))

    async def count(self, user: str) -> int:
        return await self._clerk.ask(lambda books: books.rows.count(user))

    async def search(self, user: str, query: SearchQuery) -> SearchPage:
        """Raises `BadCursor`; `StorageUnavailable` where there is no index."""
        before = None if query.cursor is None else read_search_cursor(query.cursor)
        wanted = query_words(query.text)
        if not wanted:
            return SearchPage(hits=())

        def find(books: Books) -> SearchPage:
            if books.index is None:
                raise StorageUnavailable("what was said can't be searched now")
            found = books.index.search(
                books.rows.known_user(user),
                wanted,
                before=before,
                limit=query.limit,
                row_of=books.rows.row_of_key,
            )
            return cut_search_page(found, wanted, query.limit)

        return await self._clerk.ask(find)

    async def prompt(self, session_id: str, message_id: str) -> tuple[int | None, int]:
        """Which entry it is, and up to which one all prompts are known."""
        return await self._clerk.ask(lambda books: books.prompt(session_id, message_id))

    async def stamps(self) -> dict[str, FileStamp]:
        return await self._clerk.ask(lambda books: books.rows.stamps())

    async def close(self) -> None:
        """All that was noted is in the file afterwards."""
        await self._clerk.close()
