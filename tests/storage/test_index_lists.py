"""The index lists conversations as a plain sorted list of rows would."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.storage.conversations import START, Pen, answer, prompt
from tests.storage.surveyed_files import SurveyedFile, SurveyedFiles

from nplt_storage import BadCursor, ConversationRow, RowQuery
from nplt_storage.index.database import create_database, transaction
from nplt_storage.index.tables import IndexTables
from nplt_storage.index.updates import ConversationGone
from nplt_storage.index.worker import ConversationIndex
from nplt_storage.rows import new_row, page_of, write_cursor

NAMES = ["Käse", "kÄSE und Brot", "new conversation", "Notes\x00", "ﬁsh", ""]
IDS = [f"{first}{second}{third}" for first in "ab0" for second in "ab_" for third in "aZ"]


@pytest.fixture
async def index(tmp_path: Path) -> AsyncIterator[ConversationIndex]:
    index = ConversationIndex(tmp_path / "catalog.sqlite", survey=SurveyedFiles().survey)
    yield index
    await index.close()


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
    connection = create_database(tmp_path_factory.mktemp("index") / "catalog.sqlite")
    yield connection
    connection.close()


@settings(deadline=None)
@given(rows=rows(), query=queries)
def test_any_list_is_walked_as_if_it_were_sorted_whole(
    connection: sqlite3.Connection, rows: list[ConversationRow], query: RowQuery
) -> None:
    tables = IndexTables(connection)
    with transaction(connection):
        for session_id in IDS:
            tables.apply([ConversationGone(session_id=session_id)])
        for row in rows:
            tables.keep(row, SurveyedFile(row.session_id).stamp)
    of_ada = [row for row in rows if row.user == "ada"]
    cursor: str | None = None
    while True:
        asked = replace(query, cursor=cursor)
        page = tables.page("ada", asked)
        assert page == page_of(of_ada, asked)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert tables.count("ada") == len(of_ada)


def test_no_page_of_a_list_needs_all_rows_to_be_sorted(tmp_path: Path) -> None:
    asked: list[str] = []
    connection = create_database(tmp_path / "catalog.sqlite")
    connection.set_trace_callback(asked.append)
    pinned = replace(new_row("s1", user="ada", created_at=START), pinned=True)
    cursor = write_cursor(pinned)
    for query in (RowQuery(), RowQuery(archived=False), RowQuery(unfinished=True)):
        IndexTables(connection).page("ada", replace(query, cursor=cursor))
    connection.set_trace_callback(None)
    lists = [question for question in asked if "ORDER BY" in question]
    assert len(lists) == 3
    for question in lists:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {question}").fetchall()
        assert "SEARCH" in plan[0][3]
        assert not any("TEMP B-TREE" in step[3] for step in plan)
    connection.close()


async def test_a_question_sees_all_that_was_noted_before_it(index: ConversationIndex) -> None:
    file = SurveyedFile("s1")
    for entry in Pen().write_all([prompt("t1", "What is it?"), answer("t1", "It is.")]):
        file.add(entry)
        index.note(file.row, file.stamp, entry)
    assert await index.row("s1") == file.row
    assert await index.known("s1") == (file.row, file.stamp)
    assert (await index.list("ada", RowQuery())).rows == (file.row,)
    assert await index.count("ada") == 1
    assert await index.stamps() == {"s1": file.stamp}


async def test_a_list_shows_only_ones_own_conversations(index: ConversationIndex) -> None:
    mine, yours = SurveyedFile("s1", user="ada"), SurveyedFile("s2", user="bob")
    for file in (mine, yours):
        index.note(file.row, file.stamp)
    assert (await index.list("bob", RowQuery())).rows == (yours.row,)
    assert (await index.list("eve", RowQuery())).rows == ()
    assert await index.count("eve") == 0


async def test_a_last_access_is_kept_and_never_set_back(index: ConversationIndex) -> None:
    file = SurveyedFile("s1")
    index.note(file.row, file.stamp)
    later = START + timedelta(days=1)
    index.touch("s1", later)
    index.touch("s1", START - timedelta(days=1))
    file.add(*Pen().write_all([prompt("t1")]))
    index.note(file.row, file.stamp, *file.entries)
    row = await index.row("s1")
    assert row == replace(file.row, last_accessed=later)
    await index.learn(file.learned)
    assert await index.row("s1") == row


async def test_what_is_forgotten_is_nowhere(index: ConversationIndex) -> None:
    file = SurveyedFile("s1")
    index.note(file.row, file.stamp)
    index.touch("s1", START)
    index.forget("s1")
    index.forget("never heard of")
    assert await index.row("s1") is None
    assert await index.known("s1") is None
    assert await index.stamps() == {}
    assert await index.count("ada") == 0
    index.note(file.row, file.stamp)
    assert await index.row("s1") == file.row


async def test_a_cursor_of_somewhere_else_is_refused(index: ConversationIndex) -> None:
    with pytest.raises(BadCursor):
        await index.list("ada", RowQuery(cursor="not one of ours"))
