"""What a version 2 client may be sent, for every text there is."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from nplt_protocol.messages import SessionRows
from nplt_server.dialects import (
    PieceCutter,
    fit_frame,
    json_without_markup,
    reply_text,
    without_markup,
)

_TAG = re.compile(r"\[[^\W\d_]|\[[#/@]")

texts = st.text(st.characters(exclude_categories=["Cs"]))
chatter = st.lists(st.one_of(texts, st.sampled_from(["", " ", "\n\n", "HEARTBEAT", "a", " b "])))
bracketed = st.text(st.sampled_from('[]/#@ab\\" 1é'), max_size=30)


@given(chatter)
def test_pieces_join_to_the_answer_and_none_is_blank_or_a_heartbeat(deltas: list[str]) -> None:
    cutter = PieceCutter()
    pieces = [piece for delta in deltas for piece in cutter.feed(delta)]
    whole = "".join(deltas)
    text = "".join(pieces)
    assert whole.startswith(text)
    assert not whole[len(text) :].strip()
    assert all(piece.strip() for piece in pieces)
    assert "HEARTBEAT" not in pieces


def test_an_incomplete_list_is_marked_as_incomplete() -> None:
    text = reply_text(SessionRows(sessions=(), incomplete=True))
    assert text == "The server still reads its files; the list is not complete yet."


def test_a_piece_fits_a_frame_whatever_it_is_made_of() -> None:
    pieces = PieceCutter().feed("🙂" * 100_000)
    assert "".join(pieces) == "🙂" * 100_000
    assert max(len(piece.encode()) for piece in pieces) <= 65_535


@given(texts.map(lambda text: text * 400))
def test_one_frame_is_never_outgrown_and_never_cut_inside_a_character(text: str) -> None:
    fitted = fit_frame(text)
    assert len(fitted.encode()) <= 65_535
    assert fitted == text or text.startswith(fitted[:-1])


@given(bracketed)
def test_no_bracket_in_prose_can_be_taken_for_markup(text: str) -> None:
    safe = without_markup(text)
    assert not _TAG.search(safe)
    assert safe.replace("[ ", "[").replace(" ", "") == text.replace("[ ", "[").replace(" ", "")
    Text.from_markup(safe)


@given(
    st.recursive(
        bracketed | st.booleans() | st.none(),
        lambda x: st.lists(x) | st.dictionaries(bracketed, x),
        max_leaves=20,
    )
)
def test_json_without_markup_is_the_same_value(value: object) -> None:
    for document in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        safe = json_without_markup(document)
        assert json.loads(safe) == value
        assert not _TAG.search(safe)
        Text.from_markup(safe)
