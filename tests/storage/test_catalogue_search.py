"""The index finds what reading everything would find, in the same order."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.conversations import START, Pen, answer, prompt
from tests.storage.surveyed_files import SurveyedFile, SurveyedFiles

from nplt_storage.catalogue.books import Books
from nplt_storage.catalogue.catalogue import Catalogue
from nplt_storage.catalogue.database import make_anew, transaction
from nplt_storage.catalogue.text_index import TextIndex
from nplt_storage.conversation.row_lists import BadCursor
from nplt_storage.conversation.searching import (
    SearchPage,
    SearchQuery,
    cut_search_page,
    read_search_cursor,
    search_entries,
)
from nplt_storage.conversation.snippets import query_words
from nplt_storage.errors import StorageUnavailable
from nplt_storage.facts.entries import ModelInputEntry, ModelOutputEntry, NotebookEntry

WORDS = ["fox", "foxes", "Käse", "漢字", "字", "x" * 70, "dog", "\ue0001", "AND", '"', "1"]
contents = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)


@pytest.fixture
async def catalogue(tmp_path: Path) -> AsyncIterator[Catalogue]:
    catalogue = Catalogue.open(tmp_path / "catalog.sqlite", survey=SurveyedFiles().survey)
    yield catalogue
    await catalogue.close()


def take_in(catalogue: Catalogue, *files: SurveyedFile) -> None:
    for file in files:
        catalogue.note(file.row, file.stamp, *file.entries)


async def found(catalogue: Catalogue, text: str, user: str = "ada") -> list[tuple[str, int]]:
    page = await catalogue.search(user, SearchQuery(text=text))
    return [(hit.session_id, hit.seq) for hit in page.hits]


SAID: list[type[ModelInputEntry | ModelOutputEntry | NotebookEntry]] = [
    ModelInputEntry,
    ModelOutputEntry,
    NotebookEntry,
]


@st.composite
def conversations(draw: st.DrawFn) -> SurveyedFiles:
    files = SurveyedFiles()
    # Few moments, so that much is said in the same one; some of them far away.
    moments = st.sampled_from([-(2**60), -1, 0, 1, 2, 2**50]).map(
        lambda n: START + timedelta(microseconds=max(-(2**55), n))
    )
    kinds = st.sampled_from(SAID)
    for session_id in draw(st.lists(st.sampled_from("abcd"), unique=True)):
        file = files.add(session_id, user=draw(st.sampled_from(["ada", "ada", "bob"])))
        for seq in range(1, draw(st.integers(1, 6))):
            kind, content, at = draw(kinds), draw(contents), draw(moments)
            file.add(kind(seq=seq, id=f"e{seq}", content=content, timestamp=at))
        file.row = replace(file.row, hidden=draw(st.sampled_from([(), ((2, 3),)])))
    return files


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    connection = make_anew(tmp_path_factory.mktemp("catalogue") / "catalog.sqlite")
    connection.execute("PRAGMA synchronous=OFF")
    yield connection
    connection.close()


@settings(deadline=None)
@given(files=conversations(), text=contents, limit=st.integers(1, 3))
def test_any_search_is_walked_as_if_everything_were_read(
    connection: sqlite3.Connection, files: SurveyedFiles, text: str, limit: int
) -> None:
    connection.executescript(
        "DELETE FROM conversations; DELETE FROM messages; DELETE FROM leftovers;"
        "INSERT INTO said (said) VALUES ('delete-all')"
    )
    books = Books(connection)
    with transaction(connection):
        books.apply(file.learned for file in files.by_id.values())
    cursor: str | None = None
    for _ in range(20):
        query = SearchQuery(text=text, limit=limit, cursor=cursor)
        page = _search(books, query)
        assert page == search_entries(files.said("ada"), query)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert cursor is None


def _search(books: Books, query: SearchQuery) -> SearchPage:
    wanted = query_words(query.text)
    if not wanted:
        return SearchPage(hits=())
    assert books.index is not None
    messages = books.index.search(
        books.rows.known_user("ada"),
        wanted,
        before=read_search_cursor(query.cursor) if query.cursor else None,
        limit=query.limit,
        row_of=books.rows.row_of_key,
    )
    return cut_search_page(messages, wanted, query.limit)


@settings(deadline=None)
@given(text=st.text() | st.text('漢字fox"*^:(){}+-', min_size=20))
def test_anything_can_be_looked_for(connection: sqlite3.Connection, text: str) -> None:
    _search(Books(connection), SearchQuery(text=text))


@pytest.mark.parametrize("text", ["fox " * 1000, "漢字" * 20_000, "x" * 50_000, "a 字 " * 500])
def test_a_long_question_is_a_question_too(connection: sqlite3.Connection, text: str) -> None:
    _search(Books(connection), SearchQuery(text=text))


async def test_a_hit_says_where_it_is_and_shows_the_words(catalogue: Catalogue) -> None:
    file = SurveyedFile("s1")
    file.add(*Pen().write_all([prompt("t1", "Where is the Käse?"), answer("t1", "On the moon.")]))
    take_in(catalogue, file)
    page = await catalogue.search("ada", SearchQuery(text="KASE where"))
    (hit,) = page.hits
    assert (hit.session_id, hit.seq, hit.role) == ("s1", 1, "user")
    assert (hit.name, hit.snippet) == ("Where is the Käse?", "Where is the Käse?")
    assert hit.timestamp == START
    assert page.next_cursor is None


async def test_only_what_was_said_is_searched_and_only_ones_own(catalogue: Catalogue) -> None:
    mine, yours = SurveyedFile("s1"), SurveyedFile("s2", user="bob")
    mine.add(*Pen().write_all([NotebookEntry(content="secret"), prompt("t1", "hello")]))
    yours.add(*Pen().write_all([prompt("t1", "secret")]))
    take_in(catalogue, mine, yours)
    assert await found(catalogue, "secret") == []
    assert await found(catalogue, "secret", user="bob") == [("s2", 1)]
    assert await found(catalogue, "secret", user="eve") == []
    assert await found(catalogue, "\ue0001") == []


async def test_what_was_rolled_back_is_not_found_and_archived_things_are(
    catalogue: Catalogue,
) -> None:
    file = SurveyedFile("s1")
    file.add(*Pen().write_all([prompt("t1", "one fox"), answer("t1", "two foxes")]))
    file.row = replace(file.row, hidden=((2, 2),), archived=True)
    take_in(catalogue, file)
    assert await found(catalogue, "fox") == [("s1", 1)]


async def test_a_message_met_twice_is_found_once(catalogue: Catalogue) -> None:
    file = SurveyedFile("s1")
    file.add(*Pen().write_all([prompt("t1", "a fox")]))
    take_in(catalogue, file, file)
    assert await found(catalogue, "fox") == [("s1", 1)]


async def test_what_is_forgotten_or_replaced_is_no_longer_found(catalogue: Catalogue) -> None:
    one, two = SurveyedFile("s1"), SurveyedFile("s2")
    one.add(*Pen().write_all([prompt("t1", "a fox")]))
    two.add(*Pen().write_all([prompt("t1", "another fox")]))
    take_in(catalogue, one, two)
    catalogue.forget("s1")
    two.rewrite(Pen().write_all([prompt("t1", "a dog")]))
    await catalogue.learn(two.learned)
    assert await found(catalogue, "fox") == []
    assert await found(catalogue, "dog") == [("s2", 1)]
    take_in(catalogue, one)
    assert await found(catalogue, "fox") == [("s1", 1)]


async def test_more_messages_of_one_moment_than_it_has_numbers_are_all_found_once(
    catalogue: Catalogue,
) -> None:
    file = SurveyedFile("s1")
    file.add(
        *(
            ModelInputEntry(seq=seq, id=f"e{seq}", content="fox", timestamp=START)
            for seq in range(1, 701)
        )
    )
    take_in(catalogue, file)
    met: list[int] = []
    cursor: str | None = None
    while len(met) <= 700:
        page = await catalogue.search("ada", SearchQuery(text="fox", limit=90, cursor=cursor))
        met += [hit.seq for hit in page.hits]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sorted(met) == list(range(1, 701))


async def test_a_long_message_is_found_by_what_it_begins_with(catalogue: Catalogue) -> None:
    file = SurveyedFile("s1")
    file.add(*Pen().write_all([prompt("t1", "early " + "blah " * 300_000 + "late")]))
    take_in(catalogue, file)
    assert await found(catalogue, "early") == [("s1", 1)]
    assert await found(catalogue, "late") == []


@pytest.mark.parametrize("cursor", ["nonsense", "W10=", "WzEsMiwzLDRd", "WzFlNDAsImEiLDFd"])
async def test_a_cursor_of_somewhere_else_is_refused(catalogue: Catalogue, cursor: str) -> None:
    with pytest.raises(BadCursor):
        await catalogue.search("ada", SearchQuery(text="fox", cursor=cursor))


async def test_without_fts5_searching_is_refused_and_lists_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nplt_storage.catalogue.database._can_index", lambda _: False)
    catalogue = Catalogue.open(tmp_path / "catalog.sqlite", survey=SurveyedFiles().survey)
    file = SurveyedFile("s1")
    file.add(*Pen().write_all([prompt("t1", "a fox")]))
    take_in(catalogue, file)
    with pytest.raises(StorageUnavailable):
        await catalogue.search("ada", SearchQuery(text="fox"))
    assert await catalogue.row("s1") == file.row
    catalogue.forget("s1")
    assert await catalogue.row("s1") is None
    await catalogue.close()


def test_room_for_one_more_message_of_a_full_moment_is_found_at_once(
    connection: sqlite3.Connection,
) -> None:
    """An import without times has thousands of messages at one moment."""
    index = TextIndex(connection)
    asked: list[str] = []

    def said(seq: int) -> ModelInputEntry:
        return ModelInputEntry(seq=seq, id=f"e{seq}", content="fox", timestamp=START)

    with transaction(connection):
        index.add(1, 1, [said(seq) for seq in range(1, 2_001)])
        connection.set_trace_callback(asked.append)
        index.add(1, 1, [said(seq) for seq in range(2_001, 2_101)])
        connection.set_trace_callback(None)
    looking = [statement for statement in asked if statement.startswith("SELECT max(id)")]
    assert 100 <= len(looking) <= 110
