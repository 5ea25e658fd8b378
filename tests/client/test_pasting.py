"""What a terminal sends for a paste, byte by byte."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from textual.events import Key, Paste
from textual.message import Message

from nplt_client.render.text import safe
from nplt_client.tui.keyboard import PasteParser

BEGIN, END = "\x1b[200~", "\x1b[201~"
NASTY = st.text(alphabet="a\r\n\x1b[]201~\x03\x07\x9b\u202e", max_size=30)


def parsed(text: str, *, cut: int) -> list[Message]:
    parser = PasteParser()
    pieces = [text[place : place + cut] for place in range(0, len(text), cut)]
    return [message for piece in pieces for message in parser.feed(piece)]


@given(pasted=NASTY.filter(lambda text: END not in text + END[:-1]), cut=st.integers(1, 12))
@example(pasted="hello \x1b\rworld", cut=100)
@example(pasted="a\x1b[20\x1b[31mb\x1b[200~c", cut=1)
def test_a_bracketed_paste_is_one_safe_text_and_no_key(pasted: str, cut: int) -> None:
    first, paste, *last = parsed(f"x{BEGIN}{pasted}{END}y\r", cut=cut)
    assert isinstance(first, Key)
    assert first.key == "x"
    assert isinstance(paste, Paste)
    assert paste.text == safe(pasted)
    assert [one.key for one in last if isinstance(one, Key)] == ["y", "enter"]


def test_pastes_in_a_row_and_keys_with_similar_sequences_are_parsed() -> None:
    keys = parsed(f"{BEGIN}a{END}{BEGIN}{END}\x1b[2~{BEGIN}b{END}\x1b[A", cut=4)
    assert [one.text if isinstance(one, Paste) else getattr(one, "key", one) for one in keys] == [
        "a",
        "",
        "insert",
        "b",
        "up",
    ]
