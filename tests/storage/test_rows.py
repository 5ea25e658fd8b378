"""A row of the list is what its entries make of it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.storage.conversations import START, Pen, answer, asking, call, chat, clear, prompt

from nplt_storage import ConversationHistory, ConversationRow, RowQuery
from nplt_storage.entries import Entry, ModelSwitchedEntry, RenamedEntry, UnknownEntry
from nplt_storage.rows import fold_all, name_from, new_row, page_of


def _row(*drafts: Entry) -> ConversationRow:
    return fold_all(new_row("s1", user="ada", created_at=START), Pen().write_all(drafts))


def test_a_conversation_without_a_word_is_new() -> None:
    row = _row()
    assert (row.name, row.preview, row.message_count) == ("new conversation", "", 0)
    assert row.created_at == row.updated_at == row.last_accessed == START


def test_the_first_prompt_gives_the_name_until_someone_else_does() -> None:
    assert _row(prompt("t1", "Hello there\nsecond line"), prompt("t2", "x")).name == "Hello there"
    assert _row(RenamedEntry(name="mine"), prompt("t1", "Hello")).name == "mine"
    assert _row(prompt("t1", "Hello"), RenamedEntry(name="mine")).name == "mine"
    assert _row(RenamedEntry(name="new conversation"), prompt("t1")).name == "new conversation"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("\n\n  What is   this?\nreally", "What is this?"),
        ("a" * 40, "a" * 40),
        ("a" * 41, "a" * 39 + "…"),
        (
            "one two three four five six seven eight nine",
            "one two three four five six seven eight…",
        ),
        ("The quick brown fox jumps over the lazy dog", "The quick brown fox jumps over the lazy…"),
        ("tab\there\x1b[31mred", "tab here [31mred"),
        ("## **Plan** for `nplt`, see [the page](https://x.org)", "Plan for nplt, see the page"),
        ("- [ ] ~~milk~~ 2*3*4 __init__", "[ ] milk 2*3*4 __init__"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("**", "**"),
        ("   ", "new conversation"),
        ("一二三四五六七八九十" * 5, "一二三四五六七八九十" * 3 + "一二三四五六七八九…"),
    ],
)
def test_names_are_short_single_lines_of_whole_words(text: str, name: str) -> None:
    assert name_from(text) == name


@given(st.text())
def test_a_name_is_never_long_blank_or_more_than_a_line(text: str) -> None:
    name = name_from(text)
    assert 1 <= len(name) <= 40
    assert name.strip()
    assert len(name.splitlines()) == 1


def test_the_preview_is_the_newest_message_in_a_single_line() -> None:
    assert _row(prompt("t1", "a"), answer("t1", "b\n\n c" + "d" * 100)).preview == "b c" + "d" * 77
    assert _row(prompt("t1", "look"), asking("t1", call())).preview == "look"


def test_a_row_counts_messages_and_knows_the_model_and_the_head() -> None:
    row = _row(prompt("t1"), answer("t1"), ModelSwitchedEntry(model="p/m"), clear())
    assert (row.message_count, row.model, row.head_seq) == (2, "p/m", 4)
    assert row.updated_at == START + timedelta(seconds=3)


@pytest.mark.parametrize("kind", ["system_instruction", "notebook", "clear", "epoch", "compaction"])
def test_an_entry_that_does_not_fit_its_kind_changes_only_the_head_of_the_row(kind: str) -> None:
    odd = UnknownEntry(seq=1, id="e", kind=kind, timestamp=START, fields={"content": 5})
    before = new_row("s1", user="ada", created_at=START)
    assert fold_all(before, [odd]) == replace(before, head_seq=1)


def test_the_row_and_the_history_count_alike() -> None:
    some = chat(10)
    row = fold_all(new_row("s1", user="ada", created_at=START), some)
    history = ConversationHistory("s1", some)
    assert (row.message_count, row.head_seq) == (history.message_count, history.head_seq)


def test_a_list_is_newest_first_with_the_pinned_on_top() -> None:
    def row(session_id: str, minutes: int, *, pinned: bool = False) -> ConversationRow:
        at = START + timedelta(minutes=minutes)
        return ConversationRow(
            session_id=session_id,
            user="ada",
            created_at=at,
            updated_at=at,
            last_accessed=at,
            pinned=pinned,
        )

    rows = [row("a", 1), row("c", 3), row("d", 0, pinned=True)]
    assert [row.session_id for row in page_of(rows, RowQuery()).rows] == ["d", "c", "a"]
