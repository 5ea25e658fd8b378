"""Known secrets are masked, however the text that holds them is cut into pieces."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_server.masking import MASK, MaskedText, SecretMask, secrets_among
from nplt_server.providers import (
    ModelOutputDelta,
    OpaquePiece,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
)
from nplt_server.providers.masked_output import MaskedOutput
from nplt_server.providers.model_lists import ModelLister, ModelLists
from nplt_server.providers.models import ListedModel

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
    # Less than four characters at the end of a piece are not held back.
    begun, _, rest = masked.partition(MASK)
    assert begun in {f"it is {KEY[:shown]}" for shown in range(4)}
    assert rest == ", and ollama 1"


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


class LeakyLister:
    id, address, is_open = "box", "http://127.0.0.1:1/v1", True

    async def list_models(self) -> tuple[ListedModel, ...]:
        return ListedModel(name="small"), ListedModel(name=f"large-{KEY}")


async def test_a_model_whose_name_holds_a_secret_is_not_listed() -> None:
    lists, lister = ModelLists(secrets=SECRETS), cast(ModelLister, LeakyLister())
    lists.add(lister)
    await lists.update(lists.begin())
    known = lists.of("box")
    assert known is not None
    assert [model.name for model in known.models] == ["small"]


def masked_deltas(*deltas: ModelOutputDelta) -> list[ModelOutputDelta]:
    output = MaskedOutput(SECRETS)
    return [*(each for delta in deltas for each in output.feed(delta)), *output.flush()]


def test_a_secret_in_a_stop_reason_or_the_name_of_a_tool_is_masked() -> None:
    assert masked_deltas(Stopped(reason=f"seen {KEY}")) == [Stopped(reason=f"seen {MASK}")]
    assert masked_deltas(ToolCallPiece(index=0, tool_name=f"now-{KEY}")) == [
        ToolCallPiece(index=0, tool_name=f"now-{MASK}")
    ]


@pytest.mark.parametrize("first", [TextPiece, ReasoningPiece])
def test_text_held_back_is_given_before_the_next_kind_of_delta(
    first: type[TextPiece] | type[ReasoningPiece],
) -> None:
    call = ToolCallPiece(index=0, tool_name="now", arguments=KEY[5:])
    assert masked_deltas(first(text=f"x {KEY[:5]}"), call) == [
        first(text="x "),
        first(text=KEY[:5]),
        call,
    ]


def test_a_sealed_piece_is_dropped_once_something_was_masked() -> None:
    sealed = OpaquePiece(data={"signature": "abc"})
    assert masked_deltas(ReasoningPiece(text="fine"), sealed) == [
        ReasoningPiece(text="fine"),
        sealed,
    ]
    told = [ReasoningPiece(text=KEY[:9]), ReasoningPiece(text=KEY[9:])]
    assert sealed not in masked_deltas(*told, sealed)
    assert masked_deltas(OpaquePiece(data={"thinking": KEY})) == []
