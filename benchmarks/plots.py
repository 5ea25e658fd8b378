"""Draws curves as SVG: small panels side by side, both axes logarithmic, or both from 0.

Written by hand, because a library for it would be larger than all benchmarks. Units differ
between the curves of a panel, so each is drawn as a multiple of its first point, and its
name tells what that was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.measuring import figure

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
WIDTH, HEIGHT = 340, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 34, 74, 44
COLUMNS = 3
STEPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    name: str
    unit: str
    points: Sequence[tuple[int, float]]
    one: float | None = None
    """What is drawn as 1 ×; `None`: the first point."""

    @property
    def unit_value(self) -> float:
        return self.points[0][1] if self.one is None else self.one


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    x: str
    curves: Sequence[Curve]
    linear: bool = False
    """Both axes from 0, and lines without marks: a course of time with many points."""


def draw(panels: Sequence[Panel]) -> str:
    rows = math.ceil(len(panels) / COLUMNS)
    width, height = min(COLUMNS, len(panels)) * WIDTH, rows * HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        x, y = number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT
        lines += [f'<g transform="translate({x} {y})">', *_panel(panel), "</g>"]
    return "\n".join([*lines, "</svg>", ""])


def _panel(panel: Panel) -> Iterator[str]:
    multiples = [[(x, y / curve.unit_value) for x, y in curve.points] for curve in panel.curves]
    everywhere = [point for points in multiples for point in points]
    make = LinearScale if panel.linear else LogScale
    across, up = make([x for x, _ in everywhere]), make([y for _, y in everywhere])
    if isinstance(up, LogScale):
        up.last = max(up.last, up.first + 2)  # so that what stays looks flat

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + across.part(x) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - up.part(y) * (HEIGHT - TOP - BOTTOM),
        )

    for mark in across.marks():
        x, y = place(mark, up.marks()[0])
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield _text(x, y + 15, f"{mark:,.0f}", anchor="middle")
    for mark in up.marks():
        x, y = place(across.marks()[0], mark)
        right = WIDTH - RIGHT
        yield f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>'
        yield _text(x - 5, y + 4, f"{figure(mark)} ×", anchor="end")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, panel.x, anchor="middle", bold=True)
    for number, (curve, points) in enumerate(zip(panel.curves, multiples, strict=True)):
        colour = COLOURS[number]
        places = [place(x, y) for x, y in points]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for x, y in () if panel.linear else places:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
        first = f"1 × is {figure(curve.unit_value)} {curve.unit}".rstrip()
        yield f'<rect x="{LEFT}" y="{13 + 16 * number}" width="10" height="10" fill="{colour}"/>'
        yield _text(LEFT + 16, 22 + 16 * number, f"{curve.name}; {first}")


class LogScale:
    """From one power of ten to another."""

    def __init__(self, values: Sequence[float]) -> None:
        powers = [math.log10(value) for value in values]
        self.first = math.floor(min(powers) + 1e-9)
        self.last = max(self.first + 1, math.ceil(max(powers) - 1e-9))

    def part(self, value: float) -> float:
        return (math.log10(value) - self.first) / (self.last - self.first)

    def marks(self) -> list[float]:
        return [10.0**power for power in range(self.first, self.last + 1)]


class LinearScale:
    """From 0, in at most six round steps."""

    def __init__(self, values: Sequence[float]) -> None:
        power = 10.0 ** math.floor(math.log10(max(values)))
        sizes = (factor * power for factor in (0.2, 0.25, 0.5, 1, 2))
        self.step = next(size for size in sizes if max(values) / size <= STEPS)
        self.steps = math.ceil(max(values) / self.step - 1e-9)

    def part(self, value: float) -> float:
        return value / (self.step * self.steps)

    def marks(self) -> list[float]:
        return [number * self.step for number in range(self.steps + 1)]


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
