"""The index finds what reading everything would find, in the same order."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.storage.conversations import START, Pen, answer, prompt
from tests.storage.surveyed_files import SurveyedFile, SurveyedFiles

from nplt_storage import BadCursor, SearchQuery, StorageUnavailable
from nplt_storage.entries import ModelInputEntry, ModelOutputEntry, NotebookEntry
from nplt_storage.index.database import create_database, transaction
from nplt_storage.index.full_text import TextIndex
from nplt_storage.index.tables import IndexTables
from nplt_storage.index.worker import ConversationIndex
from nplt_storage.search import search_entries

WORDS = ["fox", "foxes", "Käse", "漢字", "字", "x" * 70, "dog", "\ue0001", "AND", '"', "1"]
contents = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)


@pytest.fixture
async def index(tmp_path: Path) -> AsyncIterator[ConversationIndex]:
    index = ConversationIndex(tmp_path / "catalog.sqlite", survey=SurveyedFiles().survey)
    yield index
    await index.close()


def take_in(index: ConversationIndex, *files: SurveyedFile) -> None:
    for file in files:
        index.note(file.row, file.stamp, *file.entries)


async def found(index: ConversationIndex, text: str, user: str = "ada") -> list[tuple[str, int]]:
    page = await index.search(user, SearchQuery(text=text))
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
    connection = create_database(tmp_path_factory.mktemp("index") / "catalog.sqlite")
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
    tables = IndexTables(connection)
    with transaction(connection):
        tables.apply(file.learned for file in files.by_id.values())
    cursor: str | None = None
    for _ in range(20):
        query = SearchQuery(text=text, limit=limit, cursor=cursor)
        page = tables.search("ada", query)
        assert page == search_entries(files.messages("ada"), query)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert cursor is None


@settings(deadline=None)
@given(text=st.text() | st.text('漢字fox"*^:(){}+-', min_size=20))
def test_anything_can_be_looked_for(connection: sqlite3.Connection, text: str) -> None:
    IndexTables(connection).search("ada", SearchQuery(text=text))


@pytest.mark.parametrize("text", ["fox " * 1000, "漢字" * 20_000, "x" * 50_000, "a 字 " * 500])
def test_a_long_question_is_a_question_too(connection: sqlite3.Connection, text: str) -> None:
    IndexTables(connection).search("ada", SearchQuery(text=text))


async def test_a_hit_says_where_it_is_and_shows_the_words(index: ConversationIndex) -> None:
    file = SurveyedFile("s1")
    file.add(*Pen().write_all([prompt("t1", "Where is the Käse?"), answer("t1", "On the moon.")]))
    take_in(index, file)
    page = await index.search("ada", SearchQuery(text="KASE where"))
    (hit,) = page.hits
    assert (hit.session_id, hit.seq, hit.role) == ("s1", 1, "user")
    assert (hit.name, hit.snippet) == ("Where is the Käse?", "Where is the Käse?")
    assert hit.timestamp == START
    assert page.next_cursor is None


async def test_search_covers_message_text_of_ones_own_conversations_only(
    index: ConversationIndex,
) -> None:
    mine, yours = SurveyedFile("s1"), SurveyedFile("s2", user="bob")
    mine.add(*Pen().write_all([NotebookEntry(content="secret"), prompt("t1", "hello")]))
    yours.add(*Pen().write_all([prompt("t1", "secret")]))
    take_in(index, mine, yours)
    assert await found(index, "secret") == []
    assert await found(index, "secret", user="bob") == [("s2", 1)]
    assert await found(index, "secret", user="eve") == []
    assert await found(index, "\ue0001") == []


async def test_what_was_rolled_back_is_not_found_and_archived_things_are(
    index: ConversationIndex,
) -> None:
    file = SurveyedFile("s1")
    file.add(*Pen().write_all([prompt("t1", "one fox"), answer("t1", "two foxes")]))
    file.row = replace(file.row, hidden=((2, 2),), archived=True)
    take_in(index, file)
    assert await found(index, "fox") == [("s1", 1)]


async def test_a_message_met_twice_is_found_once(index: ConversationIndex) -> None:
    file = SurveyedFile("s1")
    file.add(*Pen().write_all([prompt("t1", "a fox")]))
    take_in(index, file, file)
    assert await found(index, "fox") == [("s1", 1)]


async def test_what_is_forgotten_or_replaced_is_no_longer_found(
    index: ConversationIndex,
) -> None:
    one, two = SurveyedFile("s1"), SurveyedFile("s2")
    one.add(*Pen().write_all([prompt("t1", "a fox")]))
    two.add(*Pen().write_all([prompt("t1", "another fox")]))
    take_in(index, one, two)
    index.forget("s1")
    two.rewrite(Pen().write_all([prompt("t1", "a dog")]))
    await index.learn(two.learned)
    assert await found(index, "fox") == []
    assert await found(index, "dog") == [("s2", 1)]
    take_in(index, one)
    assert await found(index, "fox") == [("s1", 1)]


async def test_more_messages_of_one_moment_than_it_has_numbers_are_all_found_once(
    index: ConversationIndex,
) -> None:
    file = SurveyedFile("s1")
    file.add(
        *(
            ModelInputEntry(seq=seq, id=f"e{seq}", content="fox", timestamp=START)
            for seq in range(1, 701)
        )
    )
    take_in(index, file)
    met: list[int] = []
    cursor: str | None = None
    while len(met) <= 700:
        page = await index.search("ada", SearchQuery(text="fox", limit=90, cursor=cursor))
        met += [hit.seq for hit in page.hits]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sorted(met) == list(range(1, 701))


async def test_a_long_message_is_found_by_what_it_begins_with(index: ConversationIndex) -> None:
    file = SurveyedFile("s1")
    file.add(*Pen().write_all([prompt("t1", "early " + "blah " * 300_000 + "late")]))
    take_in(index, file)
    assert await found(index, "early") == [("s1", 1)]
    assert await found(index, "late") == []


@pytest.mark.parametrize("cursor", ["nonsense", "W10=", "WzEsMiwzLDRd", "WzFlNDAsImEiLDFd"])
async def test_a_cursor_of_somewhere_else_is_refused(index: ConversationIndex, cursor: str) -> None:
    with pytest.raises(BadCursor):
        await index.search("ada", SearchQuery(text="fox", cursor=cursor))


async def test_without_fts5_searching_is_refused_and_lists_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nplt_storage.index.database._has_fts5", lambda _: False)
    index = ConversationIndex(tmp_path / "catalog.sqlite", survey=SurveyedFiles().survey)
    file = SurveyedFile("s1")
    file.add(*Pen().write_all([prompt("t1", "a fox")]))
    take_in(index, file)
    with pytest.raises(StorageUnavailable):
        await index.search("ada", SearchQuery(text="fox"))
    assert await index.row("s1") == file.row
    index.forget("s1")
    assert await index.row("s1") is None
    await index.close()


def test_room_for_one_more_message_of_a_full_moment_is_found_at_once(
    connection: sqlite3.Connection,
) -> None:
    """An import without times has thousands of messages at one moment."""
    index = TextIndex(connection)
    asked: list[str] = []

    def message(seq: int) -> ModelInputEntry:
        return ModelInputEntry(seq=seq, id=f"e{seq}", content="fox", timestamp=START)

    with transaction(connection):
        index.add(1, 1, [message(seq) for seq in range(1, 2_001)])
        connection.set_trace_callback(asked.append)
        index.add(1, 1, [message(seq) for seq in range(2_001, 2_101)])
        connection.set_trace_callback(None)
    looking = [statement for statement in asked if statement.startswith("SELECT max(id)")]
    assert 100 <= len(looking) <= 110


# Ranked


async def best(index: ConversationIndex, text: str, **how: Any) -> list[tuple[str, int]]:
    page = await index.search("ada", SearchQuery(text=text, ranked=True, **how))
    return [(hit.session_id, hit.seq) for hit in page.hits]


@pytest.fixture
def files() -> SurveyedFiles:
    files = SurveyedFiles()
    one, two = files.add("s1"), files.add("s2")
    one.say("The train to Lyon leaves at nine")
    one.say("A bus is slow")
    one.say("The train is late")
    two.say("Tickets for the train to Lyon: the train, Lyon, train")
    two.say("Lyon has two rivers")
    return files


async def test_ranked_hits_have_the_rarer_words_more_often_first(
    index: ConversationIndex, files: SurveyedFiles
) -> None:
    take_in(index, *files.by_id.values())
    assert await best(index, "train lyon") == [("s2", 1), ("s1", 1)]
    found_by_any = await best(index, "train lyon", any_word=True)
    assert found_by_any[0] == ("s2", 1)
    assert set(found_by_any) == {("s2", 1), ("s1", 1), ("s1", 3), ("s2", 2)}
    assert await best(index, "zeppelin", any_word=True) == []


async def test_ranked_hits_of_one_conversation_may_come_first(
    index: ConversationIndex, files: SurveyedFiles
) -> None:
    take_in(index, *files.by_id.values())
    assert await best(index, "train lyon", first_in="s1") == [("s1", 1), ("s2", 1)]
    assert await best(index, "train lyon", first_in="unknown") == [("s2", 1), ("s1", 1)]


async def test_ranked_hits_are_only_ones_own_and_not_rolled_back(
    index: ConversationIndex, files: SurveyedFiles
) -> None:
    yours = SurveyedFile("s3", user="bob")
    yours.say("train train train")
    files.by_id["s1"].row = replace(files.by_id["s1"].row, hidden=((1, 1),))
    take_in(index, *files.by_id.values(), yours)
    assert await best(index, "train") == [("s2", 1), ("s1", 3)]


def test_without_an_index_messages_with_more_of_the_words_come_first(files: SurveyedFiles) -> None:
    query = SearchQuery(text="train lyon", ranked=True, any_word=True, first_in="s1", limit=3)
    page = search_entries(files.messages("ada"), query)
    assert [(hit.session_id, hit.seq) for hit in page.hits] == [("s1", 1), ("s1", 3), ("s2", 1)]
    whole = search_entries(files.messages("ada"), replace(query, any_word=False, first_in=None))
    assert {(hit.session_id, hit.seq) for hit in whole.hits} == {("s1", 1), ("s2", 1)}


@given(text=st.text() | st.text('漢字fox"*^:(){}+-', min_size=20), any_word=st.booleans())
def test_anything_can_be_looked_for_by_rank(
    connection: sqlite3.Connection, text: str, any_word: bool
) -> None:
    query = SearchQuery(text=text, ranked=True, any_word=any_word)
    IndexTables(connection).search("ada", query)
