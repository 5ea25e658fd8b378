"""No escape byte from outside reaches a terminal, and harmless text is left alone."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.hostile_bits import BITS, FORBIDDEN

from nplt_client.render.text import Sanitizer, sanitize, sanitize_line

hostile = st.lists(st.sampled_from(BITS) | st.characters(), max_size=30).map("".join)


def test_the_sanitizer_leaves_no_control_sequence_of_ten_thousand_hostile_strings() -> None:
    chance = random.Random(20)
    for _ in range(10_000):
        text = "".join(chance.choices(BITS, k=chance.randint(1, 20)))
        assert not FORBIDDEN.search(sanitize(text)), ascii(text)


@given(hostile)
def test_the_sanitizer_leaves_no_control_sequence(text: str) -> None:
    assert not FORBIDDEN.search(sanitize(text))


@given(hostile, st.data())
@settings(max_examples=200)
def test_the_sanitizer_gives_the_same_text_wherever_it_is_split(
    text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    edges = [0, *cuts, len(text)]
    sanitizer = Sanitizer()
    shown = [sanitizer.feed(text[a:b]) for a, b in pairwise(edges)]
    assert "".join(shown) == sanitize(text)


@given(hostile)
def test_sanitizing_is_idempotent(text: str) -> None:
    assert sanitize(sanitize(text)) == sanitize(text)


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Cf")) | st.sampled_from("\n\t")))
def test_the_sanitizer_keeps_harmless_text(text: str) -> None:
    assert sanitize(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "漢字かな交じり文",
        "👩‍👩‍👧 🏳️‍🌈 👍🏽",
        "e\u0301",
        "مرحبا\u200f",
        "line\n\tindented",
        "a\\b[31m",
    ],
)
def test_the_sanitizer_keeps_all_scripts_and_emoji(text: str) -> None:
    assert sanitize(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;new title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;2;0;0;0\x1b\\after", "after"),
        ("\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\after", "after"),
        ("\x1b(Bcharset\x1bcreset", "charsetreset"),
        ("\x9b31mraw C1", "31mraw C1"),
        ("over\rwritten", "over\nwritten"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("a\x08b\x7fc\x00d", "abcd"),
        ("\u202egnp.exe", "gnp.exe"),
        ("half \ud83d pair", "half \ufffd pair"),
        ("ends in \x1b", "ends in "),
    ],
)
def test_an_escape_sequence_is_removed_as_a_whole_and_the_text_around_it_stays(
    text: str, shown: str
) -> None:
    assert sanitize(text) == shown


@pytest.mark.parametrize("opening", ["\x1b]", "\x1bP", "\x1b_", "\x1b^", "\x1bX"])
def test_a_string_that_never_ends_cannot_swallow_the_answer(opening: str) -> None:
    assert sanitize(opening + "hidden\nseen") == "\nseen"
    assert sanitize(opening + "x" * 100_000).endswith("x" * 90_000)


def test_an_escape_sequence_that_never_ends_cannot_swallow_the_answer() -> None:
    assert sanitize("\x1b[" + "1" * 1_000).endswith("1" * 900)


def test_sanitize_line_puts_a_name_on_one_line() -> None:
    assert sanitize_line(" two\nlines\tand \x1b[2J more ") == "two lines and more"
