"""Reads the times at which people want a prompt to run.

A time of day is resolved here, in the zone of this machine, because the server may be in another
one. A time that a change of the clocks skips becomes the first one after it; one that occurs twice
is the first of the two.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

_UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DELAY: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_TIME_OF_DAY: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_SECONDS_MAX: Final = 10**10


def read_delay(text: str) -> int:
    """The seconds of a delay such as `90s`, `5m`, `2h30m` or `1d`. Raises `ValueError`."""
    found = _DELAY.fullmatch(text.strip().lower().replace(" ", ""))
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is no delay; write 90s, 5m, 2h30m or 1d")
    counts = zip(found.groups(default="0"), _UNITS.values(), strict=True)
    seconds = sum(int(count) * unit for count, unit in counts)
    if seconds > _SECONDS_MAX:
        raise ValueError(f"{text!r} is too long")
    return seconds


def read_time(text: str, *, now: datetime, zone: tzinfo | None = None) -> datetime:
    """The instant that a person means by `18:30`, `2026-03-01 18:30` or the same with an offset.
    Raises `ValueError`. `zone`: instead of this machine's."""
    text = text.strip()
    today = now.astimezone(zone)
    if (found := _TIME_OF_DAY.fullmatch(text)) is not None:
        hour, minute, second = (int(part) for part in found.groups(default="0"))
        try:
            wanted = datetime(today.year, today.month, today.day, hour, minute, second)
        except ValueError:
            raise ValueError(f"there is no time {text!r}") from None
        at = _resolved(wanted, zone)
        return at if at > now else _resolved(wanted + timedelta(days=1), zone)
    try:
        wanted = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no time; write 18:30 or 2026-03-01 18:30, perhaps with an offset"
        ) from None
    return wanted if wanted.tzinfo is not None else _resolved(wanted, zone)


def _resolved(wanted: datetime, zone: tzinfo | None) -> datetime:
    at = _in_zone(wanted.replace(fold=0), zone)
    if at.astimezone(UTC).astimezone(zone).replace(tzinfo=None, fold=0) == wanted:
        return at
    # The clocks skip it. Of the two readings one is before the change and one after it; which of
    # them `fold=1` is depends on whether the zone is this machine's.
    other = _in_zone(wanted.replace(fold=1), zone)
    before, after = sorted((at.astimezone(UTC), other.astimezone(UTC)))
    earlier_offset = before.astimezone(zone).utcoffset()
    low, high = 0, int((after - before).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if (before + timedelta(seconds=middle)).astimezone(zone).utcoffset() == earlier_offset:
            low = middle
        else:
            high = middle
    return (before + timedelta(seconds=high)).astimezone(zone)


def _in_zone(wanted: datetime, zone: tzinfo | None) -> datetime:
    return wanted.astimezone() if zone is None else wanted.replace(tzinfo=zone)
