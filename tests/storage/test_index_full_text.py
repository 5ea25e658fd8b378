"""The full text in the index stays sound, whatever is done to it and however it is interrupted."""

from __future__ import annotations

import random
import resource
import shutil
import sqlite3
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from tests.storage.conversations import START
from tests.storage.surveyed_files import SurveyedFile, SurveyedFiles

from nplt_storage import SearchQuery, StorageUnavailable
from nplt_storage.entries import ModelInputEntry
from nplt_storage.index.database import PARTS, open_reader, unnamed_database
from nplt_storage.index.full_text import TextIndex
from nplt_storage.index.tables import IndexTables
from nplt_storage.index.updates import ConversationGone, EntriesAdded, EntryRedacted, FileStamp
from nplt_storage.index.worker import IndexDatabase
from nplt_storage.search import search_entries, words

IDS = st.sampled_from(["s1", "s2", "s3"])
USERS = st.sampled_from(["ada", "bob"])
EVERYTHING = SearchQuery(text="fox", limit=1000)


def assert_sound(connection: sqlite3.Connection) -> None:
    """FTS5 takes its index for sound, and it holds the words of the stored messages, no others."""
    connection.execute("BEGIN")
    connection.execute("INSERT INTO said (said) VALUES ('integrity-check')")
    connection.execute("CREATE VIRTUAL TABLE temp.found USING fts5vocab(main, said, instance)")
    found = Counter(connection.execute("SELECT doc, offset, term FROM found").fetchall())
    stored = connection.execute("SELECT id, user, text FROM messages").fetchall()
    connection.execute("ROLLBACK")  # the check changes nothing
    assert found == Counter(
        (number, offset, word)
        for number, user, text in stored
        for offset, word in enumerate([f"\ue000{user}", *words(unpacked(text))])
    )


def message(seq: int, content: str, earlier: int = 0) -> ModelInputEntry:
    at = START + timedelta(seconds=seq - earlier)
    return ModelInputEntry(seq=seq, id=f"e{seq}", turn_id=f"t{seq}", timestamp=at, content=content)


def unpacked(text: str | bytes) -> str:
    return text if isinstance(text, str) else zlib.decompress(text).decode()


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class FullText(RuleBasedStateMachine):
    """After each step FTS5 takes its index for sound, and it holds the words of all messages that
    are stored and no others. Merges and removals are done in such small pieces that everything
    else comes between them."""

    @initialize()
    def begin(self) -> None:
        self.cleanup = ExitStack()
        patch = self.cleanup.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("nplt_storage.index.tables._MERGED_PAGES", 1)
        patch.setattr("nplt_storage.index.tables._REMOVED_AT_ONCE", 2)
        self.directory = Path(self.cleanup.enter_context(tempfile.TemporaryDirectory()))
        self.places = 0
        self.files = SurveyedFiles()
        self.searches: list[tuple[sqlite3.Connection, Iterator[object], int]] = []
        self.path = self.new_path()
        self.database = self.opened(self.path)

    def teardown(self) -> None:
        self.end_searches()
        while self.database.untidy:
            self.database.tidy()
        for user in ("ada", "bob"):
            found = self.database.query(partial(IndexTables.search, user=user, query=EVERYTHING))
            assert found == search_entries(self.files.messages(user), EVERYTHING)
        self.database.close()
        self.cleanup.close()

    def new_path(self) -> Path:
        self.places += 1
        path = self.directory / str(self.places) / "catalog.sqlite"
        path.parent.mkdir()
        return path

    def opened(self, path: Path) -> IndexDatabase:
        database = IndexDatabase(path, self.survey, {})
        assert set(database.query(IndexTables.stamps)) == set(self.files.by_id), "not made anew"
        return database

    def survey(self, known: Mapping[str, FileStamp]) -> Iterator[EntriesAdded | ConversationGone]:
        raise AssertionError("the index was found broken")

    # What happens in conversations

    @rule(
        session_id=IDS,
        user=USERS,
        seed=st.integers(0, 99),
        length=st.sampled_from([0, 1, 20, 2000]),
        earlier=st.integers(0, 2),
    )
    def write(self, session_id: str, user: str, seed: int, length: int, earlier: int) -> None:
        """`earlier` gives several messages the same time, or times out of order."""
        file = self.files.by_id.get(session_id) or self.files.add(session_id, user=user)
        chance = random.Random(seed)
        content = " ".join(
            chance.choice(["fox", "Käse", "漢字", "x\0y", f"w{seed}"]) for _ in "abc"
        )
        content += " ".join(f"{chance.randrange(10**6):x}" for _ in range(length))
        seq = file.row.head_seq + 1
        entry = message(seq, content, earlier)
        file.add(entry)
        self.database.take_in([EntriesAdded(row=file.row, stamp=file.stamp, entries=[entry])])

    @precondition(lambda self: self.files.by_id)
    @rule(data=st.data(), again=st.booleans())
    def redact(self, data: st.DataObject, *, again: bool) -> None:
        """`again`: the entry is found once more, by a survey that was late."""
        file = self.chosen(data)
        before = file.entries[data.draw(st.integers(0, len(file.entries) - 1))]
        assert isinstance(before, ModelInputEntry)
        after = replace(before, content="")
        file.rewrite([after if each is before else each for each in file.entries])
        note = EntryRedacted(row=file.row, stamp=file.stamp, seq=before.seq)
        late = EntriesAdded(row=file.row, stamp=file.stamp, entries=file.entries)
        self.database.take_in([note, late] if again else [note])

    @precondition(lambda self: self.files.by_id)
    @rule(data=st.data(), user=USERS)
    def replace_file(self, data: st.DataObject, user: str) -> None:
        """A file that was repaired or replaced may belong to someone else."""
        file = self.chosen(data)
        file.row = replace(file.row, user=user)
        file.rewrite(file.entries[: data.draw(st.integers(1, len(file.entries)))])
        self.database.take_in([file.learned])

    @precondition(lambda self: self.files.by_id)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        file = self.chosen(data)
        del self.files.by_id[file.session_id]
        self.database.take_in([ConversationGone(session_id=file.session_id)])

    def chosen(self, data: st.DataObject) -> SurveyedFile:
        return self.files.by_id[data.draw(st.sampled_from(sorted(self.files.by_id)))]

    # What the index does meanwhile

    @rule(steps=st.integers(1, 3))
    def tidy(self, steps: int) -> None:
        for _ in range(steps):
            self.database.tidy()

    @rule()
    def search_too_long(self) -> None:
        """The writer's connection is interrupted in the middle of a search."""
        query = replace(EVERYTHING, seconds_max=-1.0)
        with suppress(StorageUnavailable):
            self.database.query(lambda tables: tables.search("ada", query))

    @precondition(lambda self: len(self.searches) < 2)
    @rule()
    def begin_search(self) -> None:
        """A search on a connection of its own, which goes on while the index changes."""
        connection = open_reader(self.path)
        connection.execute("BEGIN")
        question = "SELECT rowid FROM said WHERE said MATCH 'fox OR w*' ORDER BY rowid DESC"
        (count,) = connection.execute(question.replace("rowid", "count(*)", 1)).fetchone()
        self.searches.append((connection, connection.execute(question), count))

    @precondition(lambda self: self.searches)
    @rule()
    def end_searches(self) -> None:
        while self.searches:
            connection, found, count = self.searches.pop()
            assert len(list(found)) == count
            connection.close()

    # What goes wrong

    @rule(room=st.integers(0, 40_000))
    def fill_the_disk(self, room: int) -> None:
        """The next write fails where that many bytes were written; later there is room again."""
        journal = self.path.with_name(f"{self.path.name}-wal")
        with file_size_limit(journal.stat().st_size + room if journal.exists() else room):
            self.tidy(1)
            self.write("s1", "ada", room, 2000, 0)
            self.tidy(1)

    @rule(killed=st.booleans())
    def restart(self, *, killed: bool) -> None:
        """`killed`: with the files as they are now, which is what `kill -9` leaves."""
        self.end_searches()
        if not self.database.is_complete():  # else the files of conversations have to be surveyed
            return
        path = self.new_path() if killed else self.path
        if killed:
            for part in PARTS:
                if (left := self.path.with_name(self.path.name + part)).exists():
                    shutil.copy(left, path.with_name(path.name + part))
        self.database.close()
        self.path, self.database = path, self.opened(path)

    @invariant()
    def the_full_text_is_sound(self) -> None:
        address = f"file:{self.path}?vfs=unix-excl&mode=rw"
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
            assert_sound(connection)


FullText.TestCase.settings = settings(
    max_examples=settings().max_examples // 5,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow],
)
test_full_text_stays_sound_whatever_is_done_and_fails = FullText.TestCase


def test_full_text_stays_sound_after_a_thousand_whole_merges(tmp_path: Path) -> None:
    """SQLite before 3.41 adds two levels with each of them, and accepts no more than 2,000."""
    connection = unnamed_database(tmp_path)
    assert connection is not None
    with closing(connection):
        texts = TextIndex(connection)
        for number in range(1100):
            content = f"message {number} " + " ".join(f"{number * n:x}" for n in range(100))
            texts.add(number, 1, [message(1, content)])
            texts.remove("conversation = ?", number - 30)
            begin = True
            while texts.merge(100, begin=begin):
                begin = False
        assert_sound(connection)
