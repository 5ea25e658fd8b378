"""The events of a response: the same numbers however its text comes in pieces, at every offset."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nplt_gateway.response_builder import ResponseBuilder, after_number
from nplt_gateway.response_ids import (
    ResponseId,
    conversation_id,
    prompt_seq_of_item,
    response_id,
    session_id_of,
)
from nplt_gateway.turn_reader import Delta, DeltaKind, Over, Stored, TurnPart
from nplt_protocol.messages import TurnFinished

ID = ResponseId(prompt_seq=7, turn_id="0" * 32, session_id="my-notes_1")
REASONING, TEXT = "thinking é😀 of it", "the answér 😀"
CALLS = ('{"at": "one"}', '{"at": "two"}')


def parts(cuts: tuple[int, ...] = ()) -> list[TurnPart]:
    """A turn with reasoning, text and two calls of the client; its texts are cut there."""
    calls: list[Any] = [
        {
            "tool_name": "look",
            "tool_call_id": f"call_{place}",
            "raw_arguments": arguments,
            "by_client": True,
        }
        for place, arguments in enumerate(CALLS)
    ]
    output: dict[str, Any] = {
        "kind": "model_output",
        "call": 0,
        "state": "completed",
        "content": TEXT,
        "reasoning": REASONING,
        "tool_calls": calls,
        "usage": {"input_tokens": 1, "output_tokens": 2},
    }
    finished = TurnFinished(
        session_id="", turn_id="", state="completed", seq=9, stop_reason="tool_calls"
    )
    return [
        Stored({"kind": "model_input", "timestamp": "2026-01-01T00:00:00+00:00"}),
        *_pieces("reasoning", REASONING, cuts),
        *_pieces("text", TEXT, cuts),
        Stored(output),
        Over(finished),
    ]


def _pieces(kind: DeltaKind, text: str, cuts: tuple[int, ...]) -> list[TurnPart]:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [
        Delta(kind=kind, call=0, offset=start, text=text[start:stop])
        for start, stop in pairwise(places)
    ]


def events_of(parts: list[TurnPart]) -> list[dict[str, Any]]:
    builder = ResponseBuilder(ID)
    first, *rest = parts
    applied = [*builder.apply(first), *builder.begin()]
    return [*applied, *(event for part in rest for event in builder.apply(part))]


def joined(events: list[dict[str, Any]]) -> dict[tuple[str, int], str]:
    texts: dict[tuple[str, int], str] = {}
    for event in events:
        if "delta" in event:
            place = event["type"], event["output_index"]
            texts[place] = texts.get(place, "") + event["delta"]
    return texts


WHOLE = joined(events_of(parts()))
CUTS = st.lists(st.integers(1, 20), max_size=6).map(tuple)


def test_the_deltas_are_the_texts_and_the_arguments() -> None:
    assert [*WHOLE.values()] == [REASONING, TEXT, *CALLS]


@given(CUTS)
def test_numbers_grow_and_do_not_depend_on_how_a_text_was_cut(cuts: tuple[int, ...]) -> None:
    events, plain = events_of(parts(cuts)), events_of(parts())
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    assert joined(events) == WHOLE
    fixed = [event for event in events if "delta" not in event]
    assert fixed == [event for event in plain if "delta" not in event]


@given(CUTS, CUTS)
def test_a_stream_that_was_cut_anywhere_is_completed_exactly(
    cuts: tuple[int, ...], other_cuts: tuple[int, ...]
) -> None:
    """What a client has up to any event of one stream, and the rest of another, is the whole."""
    first, second = events_of(parts(cuts)), events_of(parts(other_cuts))
    for place in range(len(first)):
        received, last = first[: place + 1], first[place]["sequence_number"]
        rest = [new for event in second if (new := after_number(event, last)) is not None]
        texts = joined(received)
        for key, text in joined(rest).items():
            texts[key] = texts.get(key, "") + text
        assert texts == WHOLE
        kinds = [event["type"] for event in (*received, *rest) if "delta" not in event]
        assert kinds == [event["type"] for event in first if "delta" not in event]


def test_ids_are_read_back_from_their_texts() -> None:
    assert response_id(str(ID)) == ID
    assert session_id_of(conversation_id(ID.session_id)) == ID.session_id
    for item in (ID.item("msg"), ID.item("rs", 0), ID.item("fc", 3, 1)):
        assert prompt_seq_of_item(item) == ID.prompt_seq
    for text in ("", "resp_", "resp_1_x_y", f"{ID}/..", f"resp_{'9' * 16}_{'0' * 32}_a"):
        assert response_id(text) is None
