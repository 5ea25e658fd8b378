"""The catalogue lists conversations as a plain sorted list of rows would."""

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
from nplt_storage.conversation.row_lists import BadCursor, RowQuery, page_of, read_cursor
from nplt_storage.conversation.rows import ConversationRow

NAMES = ["Käse", "kÄSE und Brot", "new conversation", "Notes\x00", "ﬁsh", ""]
IDS = [f"{first}{second}{third}" for first in "ab0" for second in "ab_" for third in "aZ"]


@pytest.fixture
async def catalogue(tmp_path: Path) -> AsyncIterator[Catalogue]:
    catalogue = Catalogue.open(tmp_path / "catalog.sqlite", survey=SurveyedFiles().survey)
    yield catalogue
    await catalogue.close()


def rows() -> st.SearchStrategy[list[ConversationRow]]:
    moments = st.integers(-3, 3).map(lambda n: START + timedelta(microseconds=n))
    row = st.builds(
        ConversationRow,
        session_id=st.sampled_from(IDS),
        user=st.sampled_from(["ada", "bob"]),
        name=st.sampled_from(NAMES),
        created_at=st.just(START),
        updated_at=moments,
        last_accessed=moments,
        pinned=st.booleans(),
        archived=st.booleans(),
        unfinished=st.sampled_from([(), (("t1", 3),)]),
        hidden=st.sampled_from([(), ((1, 2), (5, 9))]),
        model=st.none() | st.just("p/m"),
    )
    return st.lists(row, max_size=18, unique_by=lambda row: row.session_id)


queries = st.builds(
    RowQuery,
    limit=st.integers(1, 4),
    archived=st.sampled_from([None, None, True, False]),
    name_has=st.sampled_from([None, None, "", "käse", "FI", "\x00", "nothing like it"]),
    name_is=st.sampled_from([None, None, "Käse", "käse"]),
    id_prefix=st.sampled_from([None, None, "", "a", "a_", "0bZ", "zz"]),
    unfinished=st.sampled_from([False, False, True]),
)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    connection = make_anew(tmp_path_factory.mktemp("catalogue") / "catalog.sqlite")
    yield connection
    connection.close()


@settings(deadline=None)
@given(rows=rows(), query=queries)
def test_any_list_is_walked_as_if_it_were_sorted_whole(
    connection: sqlite3.Connection, rows: list[ConversationRow], query: RowQuery
) -> None:
    books = Books(connection)
    with transaction(connection):
        for session_id in IDS:
            books.rows.remove(session_id)
        for row in rows:
            books.rows.keep(row, SurveyedFile(row.session_id).stamp)
    of_ada = [row for row in rows if row.user == "ada"]
    cursor: str | None = None
    while True:
        asked = replace(query, cursor=cursor)
        page = books.rows.page("ada", asked, read_cursor(cursor) if cursor else None)
        assert page == page_of(of_ada, asked)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert books.rows.count("ada") == len(of_ada)


def test_no_page_of_a_list_needs_all_rows_to_be_sorted(tmp_path: Path) -> None:
    asked: list[str] = []
    connection = make_anew(tmp_path / "catalog.sqlite")
    connection.set_trace_callback(asked.append)
    place = (True, START, "s1")
    for query in (RowQuery(), RowQuery(archived=False), RowQuery(unfinished=True)):
        Books(connection).rows.page("ada", query, place)
    connection.set_trace_callback(None)
    lists = [question for question in asked if "ORDER BY" in question]
    assert len(lists) == 3
    for question in lists:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {question}").fetchall()
        assert "SEARCH" in plan[0][3]
        assert not any("TEMP B-TREE" in step[3] for step in plan)
    connection.close()


async def test_a_question_sees_all_that_was_noted_before_it(catalogue: Catalogue) -> None:
    file = SurveyedFile("s1")
    for entry in Pen().write_all([prompt("t1", "What is it?"), answer("t1", "It is.")]):
        file.add(entry)
        catalogue.note(file.row, file.stamp, entry)
    assert await catalogue.row("s1") == file.row
    assert await catalogue.known("s1") == (file.row, file.stamp)
    assert (await catalogue.list("ada", RowQuery())).rows == (file.row,)
    assert await catalogue.count("ada") == 1
    assert await catalogue.stamps() == {"s1": file.stamp}


async def test_nobody_sees_the_conversations_of_another(catalogue: Catalogue) -> None:
    mine, yours = SurveyedFile("s1", user="ada"), SurveyedFile("s2", user="bob")
    for file in (mine, yours):
        catalogue.note(file.row, file.stamp)
    assert (await catalogue.list("bob", RowQuery())).rows == (yours.row,)
    assert (await catalogue.list("eve", RowQuery())).rows == ()
    assert await catalogue.count("eve") == 0


async def test_a_last_access_is_kept_and_never_set_back(catalogue: Catalogue) -> None:
    file = SurveyedFile("s1")
    catalogue.note(file.row, file.stamp)
    later = START + timedelta(days=1)
    catalogue.touch("s1", later)
    catalogue.touch("s1", START - timedelta(days=1))
    file.add(*Pen().write_all([prompt("t1")]))
    catalogue.note(file.row, file.stamp, *file.entries)
    row = await catalogue.row("s1")
    assert row == replace(file.row, last_accessed=later)
    await catalogue.learn(file.learned)
    assert await catalogue.row("s1") == row


async def test_what_is_forgotten_is_nowhere(catalogue: Catalogue) -> None:
    file = SurveyedFile("s1")
    catalogue.note(file.row, file.stamp)
    catalogue.touch("s1", START)
    catalogue.forget("s1")
    catalogue.forget("never heard of")
    assert await catalogue.row("s1") is None
    assert await catalogue.known("s1") is None
    assert await catalogue.stamps() == {}
    assert await catalogue.count("ada") == 0
    catalogue.note(file.row, file.stamp)
    assert await catalogue.row("s1") == file.row


async def test_a_cursor_of_somewhere_else_is_refused(catalogue: Catalogue) -> None:
    with pytest.raises(BadCursor):
        await catalogue.list("ada", RowQuery(cursor="not one of ours"))
