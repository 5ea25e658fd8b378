"""Cutting a text: nothing that is seen as one character is torn."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_server.digest.text import cut, may_cut, one_line

ACUTE = "e\u0301"
FAMILY = "👩\u200d👩\u200d👧"
WAVE = "👋🏽"
GERMANY = "🇩🇪"
SCOTLAND = "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
HEART = "❤\ufe0f"
HANGUL = "\u1112\u1161\u11ab"
KSHA = "क\u094dष"

CLUSTERS = [
    ACUTE,
    FAMILY,
    WAVE,
    GERMANY,
    SCOTLAND,
    HEART,
    HANGUL,
    KSHA,
    "\r\n",
    "a",
    "漢",
    " ",
    ".",
]


def test_what_fits_stays_as_it_is() -> None:
    assert cut("all of it", 9) == "all of it"
    assert cut("", 0) == ""


def test_a_cut_text_ends_with_a_word_and_a_mark() -> None:
    assert cut("the quick brown fox", 12) == "the quick…"
    assert cut("the quick brown fox", 10) == "the quick…"


def test_a_script_without_spaces_is_cut_between_its_signs() -> None:
    assert cut("我们上周讨论了仓库", 5) == "我们上周…"


def test_one_endless_word_is_cut_at_the_limit() -> None:
    assert cut("x" * 50, 10) == "x" * 9 + "…"


@pytest.mark.parametrize("cluster", [c for c in CLUSTERS if len(c) > 1])
def test_no_cluster_has_a_place_to_cut_inside(cluster: str) -> None:
    text = f"a{cluster}b"
    places = [place for place in range(len(text) + 1) if may_cut(text, place)]
    assert places == [0, 1, 1 + len(cluster), len(text)]


def test_adjacent_flag_emoji_are_separate_characters() -> None:
    assert cut(GERMANY * 5, 6) == GERMANY * 2 + "…"
    assert cut(GERMANY * 5, 5) == GERMANY * 2 + "…"


def test_a_character_that_is_longer_than_the_limit_is_left_out() -> None:
    assert cut("e" + "\u0301" * 50, 10) == "…"


@given(st.lists(st.sampled_from(CLUSTERS), max_size=40), st.integers(0, 60))
def test_only_whole_clusters_stay(clusters: list[str], characters_max: int) -> None:
    text = "".join(clusters)
    kept = cut(text, characters_max)
    assert len(kept) <= characters_max
    if kept != text and kept:
        kept = kept.removesuffix("…")
        ends = {0}
        for cluster in clusters:
            ends.add(max(ends) + len(cluster))
        assert len(kept) in ends
        assert text.startswith(kept)


@given(st.text(), st.integers(0, 60))
def test_no_mark_is_parted_from_its_letter(text: str, characters_max: int) -> None:
    kept = cut(text, characters_max)
    assert len(kept) <= characters_max
    if kept and kept != text:
        rest = text[len(kept) - 1 :]
        assert not (len(kept) > 1 and unicodedata.category(rest[0]).startswith("M"))


@given(st.text())
def test_one_line_is_one_line_with_the_same_words(text: str) -> None:
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert line.split() == text.split()
