"""Both vendors fail in all eight ways, over real sockets; `python -m faults P15` does it to
a process, and in ten more ways."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.support.failing_vendors import (
    CANARY,
    CASES,
    FailingScript,
    places_of_the_key,
    providers_of,
    try_all,
)
from tests.support.server_thread import serving
from tests.vendors import emulator_in_thread

pytestmark = pytest.mark.slow

PATIENCE = {"first_token_seconds_max": 60, "gap_seconds_max": 4, "turns_per_user_max": 64}
"""Enough for a busy machine; one that stalls is waited for that long, all of them at once."""


def test_a_failing_vendor_ends_a_turn_once_and_a_truncated_answer_is_not_complete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    key_file = tmp_path / "key"
    key_file.write_text(CANARY)
    key_file.chmod(0o600)
    script = FailingScript()
    with emulator_in_thread(script, key=CANARY) as vendors:
        providers = providers_of(
            CASES,
            openai_url=vendors.openai_url,
            anthropic_url=vendors.anthropic_url,
            key_file=key_file,
        )
        settings = {"providers": providers, "limits": PATIENCE}
        with serving(tmp_path / "data", settings) as port:
            tried, complaints = try_all(port, CASES, script)
    assert complaints == []
    assert vendors.rejections == []
    assert places_of_the_key(tried, tmp_path, but=key_file) == []
    assert CANARY not in caplog.text
