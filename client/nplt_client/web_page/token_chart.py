"""Tokens per turn as a small drawing: one bar each, what went in below what came out.

Plain SVG with a title on every bar. A conversation of thousands of turns is
drawn with a bar for several of them together, so that the drawing stays small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, ROOM_ABOVE, ROOM_BELOW, ROOM_LEFT = 720, 132, 16, 20, 48
BARS_MAX = 120
_BAR_WIDTH_MAX = 28.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTokens:
    number: int
    sent: int
    received: int


def chart(turns: Sequence[TurnTokens]) -> str:
    """Empty when nothing was counted."""
    bars = _together(turns)
    top = max((bar[0].sent + bar[0].received for bar in bars), default=0)
    if not top:
        return ""
    floor = HEIGHT - ROOM_BELOW
    drawn = "".join(_bars(bars, top=top, floor=floor))
    half = (floor + ROOM_ABOVE) / 2
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="tokens per turn">'
        f'<line class="grid" x1="{ROOM_LEFT}" y1="{ROOM_ABOVE}" x2="{WIDTH}" y2="{ROOM_ABOVE}"/>'
        f'<line class="grid" x1="{ROOM_LEFT}" y1="{half:g}" x2="{WIDTH}" y2="{half:g}"/>'
        f'<line class="floor" x1="{ROOM_LEFT}" y1="{floor}" x2="{WIDTH}" y2="{floor}"/>'
        f'<text class="end" x="{ROOM_LEFT - 6}" y="{ROOM_ABOVE + 4}">{short(top)}</text>'
        f'<text class="end" x="{ROOM_LEFT - 6}" y="{half + 4:g}">{short(top / 2)}</text>'
        f'<text class="end" x="{ROOM_LEFT - 6}" y="{floor + 4}">0</text>'
        f"{drawn}</svg>"
    )


def turns_per_bar(turns: Sequence[TurnTokens]) -> int:
    return -(-len(turns) // BARS_MAX) or 1


def _together(turns: Sequence[TurnTokens]) -> list[tuple[TurnTokens, int]]:
    """Each bar with the number of the last turn in it."""
    step = turns_per_bar(turns)
    groups = [turns[at : at + step] for at in range(0, len(turns), step)]
    return [
        (
            TurnTokens(
                number=group[0].number,
                sent=sum(turn.sent for turn in group),
                received=sum(turn.received for turn in group),
            ),
            group[-1].number,
        )
        for group in groups
    ]


def _bars(bars: Sequence[tuple[TurnTokens, int]], *, top: int, floor: int) -> Iterator[str]:
    room = (WIDTH - ROOM_LEFT) / len(bars)
    width = min(room * 0.72, _BAR_WIDTH_MAX)
    # Numbers below, as many as are easily read side by side.
    every = -(-len(bars) * 40 // (WIDTH - ROOM_LEFT)) or 1
    for place, (bar, last) in enumerate(bars):
        # A few turns stand together at the left, not far apart.
        step = min(room, _BAR_WIDTH_MAX * 1.6)
        left = ROOM_LEFT + 8 + place * step if step < room else ROOM_LEFT + place * room
        scale = (floor - ROOM_ABOVE) / top
        sent, received = bar.sent * scale, bar.received * scale
        name = f"turn {bar.number}" if last == bar.number else f"turns {bar.number}–{last}"
        yield (
            f'<a href="#turn-{bar.number}"><title>{name}: {bar.sent:,} in, '
            f"{bar.received:,} out</title>"
            f'<rect class="sent" x="{left:.1f}" y="{floor - sent:.1f}" width="{width:.1f}" '
            f'height="{sent:.1f}"/>'
            f'<rect class="received" x="{left:.1f}" y="{floor - sent - received:.1f}" '
            f'width="{width:.1f}" height="{received:.1f}"/></a>'
        )
        if place % every == 0:
            yield (
                f'<text class="mid" x="{left + width / 2:.1f}" y="{HEIGHT - 5}">{bar.number}</text>'
            )


def short(number: float) -> str:
    """1234 → 1.2k: an axis has little room."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"
