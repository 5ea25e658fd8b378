"""The full text in the index stays sound, whatever is done to it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tests.storage.conversations import Pen, prompt

from nplt_storage.index.database import unnamed_database
from nplt_storage.index.full_text import TextIndex


def test_full_text_stays_sound_after_two_thousand_whole_merges(tmp_path: Path) -> None:
    """SQLite before 3.41 adds levels with each of them, and accepts no more than 2,000."""
    connection = unnamed_database(tmp_path)
    assert connection is not None
    with closing(connection):
        texts = TextIndex(connection)
        for number in range(2000):
            content = f"message {number} " + " ".join(f"{number * n:x}" for n in range(100))
            texts.add(number, 1, Pen().write_all([prompt("t1", content)]))
            texts.remove(1, "conversation = ?", number - 100)
            begin = True
            while texts.merge(100, begin=begin):
                begin = False
        connection.execute("INSERT INTO said (said) VALUES ('integrity-check')")
