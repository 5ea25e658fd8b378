"""What is looked for is found whatever its case, accents, width or script."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_storage.search import WORD_CHARACTERS_MAX, matches, query_words, snippet, words

TEXTS = st.text(st.characters(codec="utf-8"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Don't PANIC, it's 42!", ["don", "t", "panic", "it", "s", "42"]),
        ("snake_case and kebab-case", ["snake", "case", "and", "kebab", "case"]),
        ("Käse KÄSE ka\u0308se ＫＡＳＥ", ["kase"] * 4),
        ("Straße ﬁne Ⅳ İstanbul", ["strasse", "fine", "iv", "istanbul"]),
        ("Ёлка ёлка", ["елка", "елка"]),
        ("漢字abcかな", ["漢", "字", "abc", "か", "な"]),
        ("ガ ｶﾞ", ["ガ", "ガ"]),
        ("한국어", ["한", "국", "어"]),
        ("สวัสดี", list("สวัสดี")),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("שָׁלוֹם", ["שלום"]),
        ("soft\u00adhyphen zero\u200dwidth", ["softhyphen", "zerowidth"]),
        ("🦊 — …", []),
        ("x" * 100, ["x" * WORD_CHARACTERS_MAX]),
    ],
)
def test_words_are_runs_of_letters_and_digits_seen_plainly(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@given(st.text(max_size=40), st.sampled_from(["a", "é", "漢", "\u0301"]), st.sampled_from(" \n"))
def test_the_words_of_a_long_text_are_those_of_its_parts(text: str, letter: str, gap: str) -> None:
    part = f"{text}{gap}{letter * 3}"
    assert words(gap.join([part] * 8_000)) == words(part) * 8_000


@given(st.text())
def test_a_word_is_made_of_itself_and_of_no_other_ascii_than_letters_and_digits(text: str) -> None:
    for word in words(text):
        assert 0 < len(word) <= WORD_CHARACTERS_MAX
        assert all(c in "abcdefghijklmnopqrstuvwxyz0123456789" for c in word if c.isascii())
        assert "\ue000" not in word


@pytest.mark.parametrize(
    ("query", "text", "found"),
    [
        ("fox", "the quick brown Fox", True),
        ("fox quick", "the quick brown fox", True),
        ("fo", "the quick brown fox", True),
        ("qui fox", "the quick brown fox", False),
        ("ox", "the quick brown fox", False),
        ("fox cat", "the quick brown fox", False),
        ("漢字", "これは漢字です", True),
        ("漢字", "字は漢", False),
        ("字です これ", "これは漢字です", True),
        ("", "anything", False),
        ("?!", "anything?!", False),
    ],
)
def test_a_search_needs_all_words_and_takes_the_last_as_a_prefix(
    query: str, text: str, found: bool
) -> None:
    assert matches(query_words(query), text) is found


@given(TEXTS, st.data())
def test_every_word_of_a_text_finds_it(text: str, data: st.DataObject) -> None:
    if found := words(text):
        assert matches(query_words(data.draw(st.sampled_from(found))), text)


@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        ("short and whole", "whole", "short and whole"),
        ("one two three four five six seven", "five", "…five six seven"),
        ("\n\n a\tb \x1b[31mred\x07 \n", "red", "a b [31mred"),
        ("x" * 50 + " needle", "needle", "…needle"),
        ("Der Käse: ein langer Satz, der weitergeht", "kase", "Der Käse: ein l…"),
        ("これは長い文章の中にある漢字です。まだ続く", "漢字", "…章の中にある漢字です。まだ続く"),
    ],
)
def test_a_snippet_is_one_line_around_the_first_of_the_words(
    text: str, query: str, expected: str
) -> None:
    assert snippet(text, query_words(query), characters=16) == expected


def test_a_snippet_from_deep_inside_a_long_text_shows_the_word() -> None:
    text = "nothing here\n" * 20_000 + "but a nëëdle\n" + "nothing there\n" * 20_000
    shown = snippet(text, query_words("needle"))
    assert "but a nëëdle nothing there" in shown
    assert (shown[0], shown[-1]) == ("…", "…")


@given(TEXTS, TEXTS, st.integers(min_value=2, max_value=60))
def test_a_snippet_is_always_a_short_printable_line(text: str, query: str, characters: int) -> None:
    shown = snippet(text, query_words(query), characters)
    assert len(shown) <= characters
    assert shown.isprintable()


@given(st.lists(st.sampled_from(["fox", "dog", "漢字", "Käse", "\n", "…", "a" * 30])), st.data())
def test_a_snippet_shows_the_word_that_was_found(
    words_written: list[str], data: st.DataObject
) -> None:
    wanted = data.draw(st.sampled_from(["fox", "dog", "漢字", "Käse"]))
    text = " ".join(words_written)
    if matches(query_words(wanted), text):
        assert matches(query_words(wanted), snippet(text, query_words(wanted)))


def test_a_word_that_is_asked_for_again_is_looked_for_once() -> None:
    assert query_words("w " * 500) == (" w ", " w")
    assert query_words("be or not to be") == (" be ", " or ", " not ", " to ", " be")
    assert query_words(" ") == ()
