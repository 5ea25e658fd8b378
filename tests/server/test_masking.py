"""Known secrets are masked, however the text that holds them is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_server.masking import MASK, MaskedText, SecretMask, secrets_among

KEY = "sk-sk-ant-0123456789abcdef"
OTHER = "aaaaaaaaaaaaaaab"
SECRETS = SecretMask((KEY, OTHER, "ollama", "1"))

words = st.sampled_from([KEY, OTHER, KEY[:-1], KEY[:5], KEY[3:], "a", "s", "sk-", " ", "aaaa", "x"])
texts = st.lists(words, max_size=12).map("".join)


def given_in_pieces(text: str, cuts: list[int]) -> str:
    stream, places = MaskedText(SECRETS), sorted({0, *(cut % (len(text) + 1) for cut in cuts)})
    ends = [*places[1:], len(text)]
    pieces = [text[start:end] for start, end in zip(places, ends, strict=True)]
    return "".join([*map(stream.feed, pieces), stream.flush()])


@given(texts, st.lists(st.integers(0, 500), max_size=40))
def test_no_secret_is_left_in_a_text_however_it_is_split(text: str, cuts: list[int]) -> None:
    masked = given_in_pieces(text, cuts)
    assert KEY not in masked
    assert OTHER not in masked


@given(st.text(alphabet="sk-ant aloam1", max_size=60), st.lists(st.integers(0, 60), max_size=30))
def test_a_text_without_a_secret_is_given_as_it_is(text: str, cuts: list[int]) -> None:
    assert given_in_pieces(text, cuts) == text


@pytest.mark.parametrize("size", range(1, len(KEY) + 8))
def test_a_secret_in_pieces_of_any_size_is_masked_and_the_rest_is_whole(size: int) -> None:
    text = f"it is {KEY}, and ollama 1"
    masked = given_in_pieces(text, list(range(0, len(text), size)))
    assert masked.startswith("it is ")
    assert masked.endswith(f"{MASK}, and ollama 1")
    assert KEY[4:] not in masked


def test_the_beginning_of_a_secret_that_is_most_of_it_is_masked_at_the_end() -> None:
    assert given_in_pieces(f"see {KEY[:-1]}", []) == f"see {MASK}"
    assert given_in_pieces(f"see {KEY[:8]}", []) == f"see {KEY[:8]}"


def test_a_word_that_ends_like_a_key_begins_is_not_held_back() -> None:
    assert MaskedText(SECRETS).feed("words") == "words"


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("GITHUB_TOKEN", True),
        ("OPENAI_API_KEY", True),
        ("X-Api-Key", True),
        ("Authorization", True),
        ("DB_PASSWORD", True),
        ("CLIENT_SECRET", True),
        ("GIT_AUTHOR", False),
        ("SSH_KEY_PATH", False),
        ("SECRET_FILE", False),
        ("MONKEY", False),
        ("HOME", False),
    ],
)
def test_a_variable_is_secret_by_the_last_word_of_its_name(name: str, is_secret: bool) -> None:
    assert secrets_among({name: "Bearer 0123456789abcdef"}) == ["0123456789abcdef"] * is_secret
