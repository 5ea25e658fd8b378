"""Times that people type for prompts for later."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from nplt_client.later import read_delay, read_time

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)  # 13:00 in Berlin; the clocks change at night


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("2h30m", 9_000), ("1d", 86_400), ("1d 2h", 93_600), ("0s", 0)],
)
def test_a_delay_is_read_as_seconds(text: str, seconds: int) -> None:
    assert read_delay(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "5m2h", "soon"])
def test_what_is_no_delay_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no delay"):
        read_delay(text)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("18:30", "2026-03-28T18:30:00+01:00"),
        ("12:59", "2026-03-29T12:59:00+02:00"),
        ("2026-07-01 9:00".replace(" 9", " 09"), "2026-07-01T09:00:00+02:00"),
        ("2026-07-01T09:00:00-05:00", "2026-07-01T09:00:00-05:00"),
        ("2026-03-29 02:30", "2026-03-29T03:00:00+02:00"),  # skipped: the next valid one
        ("2:30", "2026-03-29T03:00:00+02:00"),
        ("2026-10-25 02:30", "2026-10-25T02:30:00+02:00"),  # ambiguous: the first one
    ],
)
def test_a_time_is_resolved_in_the_zone_of_the_client(text: str, at: str) -> None:
    assert read_time(text, now=NOW, zone=BERLIN).isoformat() == at


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_berlin")
@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-03-29 02:00", "2026-03-29T03:00:00+02:00"),
        ("2026-03-29 02:30", "2026-03-29T03:00:00+02:00"),
        ("2026-03-29 01:59", "2026-03-29T01:59:00+01:00"),
        ("2026-10-25 02:30", "2026-10-25T02:30:00+02:00"),
        ("18:30", "2026-03-28T18:30:00+01:00"),
    ],
)
def test_a_time_is_resolved_in_the_zone_of_the_machine(text: str, at: str) -> None:
    assert read_time(text, now=NOW).isoformat() == at


@pytest.mark.parametrize("text", ["", "25:00", "2026-02-30 09:00", "tomorrow-ish"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no time"):
        read_time(text, now=NOW, zone=BERLIN)
