"""Claude plans and GPT executes, over real sockets; `python -m faults P15` lets them do so
for two hundred turns."""

from __future__ import annotations

from pathlib import Path

from tests.support.alternating_vendors import (
    alternate,
    cached_share,
    script,
    settings_of,
    voices_in,
)
from tests.support.server_thread import serving
from tests.vendors import emulator_in_thread

TURNS = 12


def test_no_vendor_refuses_the_output_of_another_in_a_shared_conversation(
    tmp_path: Path,
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("sk-emulated")
    key_file.chmod(0o600)
    with emulator_in_thread(script) as vendors:
        settings = settings_of(
            openai_url=vendors.openai_url, anthropic_url=vendors.anthropic_url, key_file=key_file
        )
        with serving(tmp_path / "data", settings) as port:
            talk = alternate(port, turns=TURNS)
    assert vendors.rejections == []
    assert talk.complaints == []
    assert (talk.turns, talk.tools) == (TURNS, TURNS * 2)
    assert talk.epochs >= 1
    assert len(voices_in(vendors.received)) == 4
    assert {
        api: cached_share(vendors.received, api) > 0.3 for api in ("messages", "responses")
    } == {
        "messages": True,
        "responses": True,
    }
