"""An answer that was cut, in each chat: the reason below it, and `/continue`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.nplt_process import run_nplt
from tests.client.screen_user import at_screen
from tests.client.terminal_user import at_terminal
from tests.support.scripted_vendor import chat, vendor
from tests.support.server_thread import serving

from nplt_client.render.answers import joined
from nplt_protocol.json_text import JsonObject

pytestmark = pytest.mark.slow


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a server whose model needs three goes for one answer."""
    parts = (
        chat("The quick **bro", "length", tokens=1024),
        chat("wn** fox jumps over the la", "length", tokens=512),
        chat("zy dog."),
    )
    with (
        vendor(*parts) as server,
        serving(tmp_path / "data", {"providers": [server.provider()]}) as port,
    ):
        yield f"nplt://127.0.0.1:{port}"


def test_the_full_screen_chat_shows_a_cut_answer_and_its_rest_as_one(
    address: str, tmp_path: Path
) -> None:
    with at_screen("chat", home=tmp_path, NPLT_SERVER=address) as person:
        person.sees("Ask something.")
        person.types("Say it.\r")
        person.sees("✂ cut at 1,024 tokens: /continue")
        person.types("/continue\r")
        person.sees("The quick brown fox jumps over the la\n", "✂ cut at 512 tokens: /continue")
        person.types("/continue\r")
        person.sees("The quick brown fox jumps over the lazy dog.", "box/m")
        person.types("/continue\r")
        person.sees("there is no answer to go on with")
        person.sees_no("✂ cut")
    with at_screen("chat", "-c", home=tmp_path, NPLT_SERVER=address) as person:
        person.sees("The quick brown fox jumps over the lazy dog.")


def test_a_piped_chat_says_on_stderr_that_an_answer_was_cut_and_goes_on(
    address: str, tmp_path: Path
) -> None:
    done = run_nplt("chat", home=tmp_path, server=address, stdin="Say it.\n/continue\n/continue\n")
    assert done.stdout.split() == [
        *["The", "quick", "**bro"],
        *["wn**", "fox", "jumps", "over", "the", "la"],
        *["zy", "dog."],
    ]
    assert "cut at 1,024 tokens: /continue" in done.stderr


def test_the_line_chat_says_that_an_answer_was_cut(address: str, tmp_path: Path) -> None:
    with at_terminal("chat", "--plain", home=tmp_path, NPLT_SERVER=address) as person:
        person.is_asked()
        person.types("Say it.")
        person.sees("cut at 1,024 tokens: /continue")


def _message(seq: int, role: str, turn: str, text: str, continues: int | None = None) -> JsonObject:
    more: JsonObject = {} if continues is None else {"continues": continues}
    return {"seq": seq, "role": role, "turn_id": turn, "content": text, **more}


def test_parts_are_joined_only_with_the_answer_they_go_on_with() -> None:
    whole = [
        _message(1, "user", "a", "Say it."),
        _message(2, "assistant", "a", "one "),
        _message(3, "user", "b", "go on", 2),
        _message(5, "user", "c", "go on", 2),
        _message(6, "assistant", "c", "two"),
        _message(7, "user", "d", "And now?"),
        _message(8, "assistant", "d", "three"),
    ]

    def texts(messages: list[JsonObject]) -> list[tuple[object, object]]:
        return [(one["seq"], one["content"]) for one in joined(messages)]

    assert texts(whole) == [(1, "Say it."), (2, "one two"), (7, "And now?"), (8, "three")]
    # The page before has the beginning.
    assert texts(whole[3:5]) == [(5, "go on"), (6, "two")]
    # The rest is still to come.
    assert texts(whole[:4]) == [(1, "Say it."), (2, "one ")]
