"""A prompt that does not fit the model's window, in each chat: the choice, and `/cut`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.nplt_process import run_nplt
from tests.client.screen_user import at_screen
from tests.support.server_thread import serving

pytestmark = pytest.mark.slow

LARGE = "word " * 6_000


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    settings = {
        "providers": [{"id": "offline", "type": "offline", "words_per_second": 0}],
        "models": {"offline/echo": {"context_tokens": 4_096, "output_tokens": 512}},
    }
    with serving(tmp_path / "data", settings) as port:
        yield f"nplt://127.0.0.1:{port}"


def test_the_full_screen_chat_asks_what_becomes_of_a_prompt_that_does_not_fit(
    address: str, tmp_path: Path
) -> None:
    with at_screen("chat", home=tmp_path, NPLT_SERVER=address) as person:
        person.sees("Ask something.")
        person.types(f"\x1b[200~{LARGE}\x1b[201~")
        person.types("\r")
        person.sees("The prompt does not fit the model", "/cut")
        person.types("\r")
        person.sees("✂ your prompt was cut in the middle")


def test_a_piped_chat_refuses_a_prompt_that_does_not_fit_and_cut_sends_it(
    address: str, tmp_path: Path
) -> None:
    done = run_nplt("chat", home=tmp_path, server=address, stdin=f"{LARGE}\n/cut\n")
    assert "the prompt takes about " in done.stderr
    assert "characters left out" in done.stdout
    assert "the prompt was cut in the middle" in done.stderr
