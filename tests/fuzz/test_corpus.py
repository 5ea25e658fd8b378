"""Replays the inputs that fuzzing found; none may break a rule. `make fuzz` looks for more."""

from __future__ import annotations

import pytest
from tests.fuzz.targets import CORPUS, TARGETS

CORPUS_BYTES_MAX = 900_000


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")  # every torn file would be logged


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_of_the_corpus_breaks_a_rule(target: str) -> None:
    inputs = sorted((CORPUS / target).iterdir())
    assert inputs
    for path in inputs:
        try:
            TARGETS[target](path.read_bytes())
        except Exception as error:
            error.add_note(f"the input: {path}")
            raise


@pytest.mark.parametrize("target", TARGETS)
def test_short_inputs_break_no_rule(target: str) -> None:
    for data in (b"", b"\0", b"\1", b"\2\2", b"\3\3\3\3\3"):
        TARGETS[target](data)


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < (
        CORPUS_BYTES_MAX
    )
