"""Draws curves as SVG: small panels side by side, both axes logarithmic.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    name: str
    unit: str
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    x: str
    curves: Sequence[Curve]


def draw(panels: Sequence[Panel]) -> str:
    rows = math.ceil(len(panels) / COLUMNS)
    width, height = COLUMNS * WIDTH, rows * HEIGHT
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
    multiples = [[(x, y / curve.points[0][1]) for x, y in curve.points] for curve in panel.curves]
    everywhere = [point for points in multiples for point in points]
    x_min, x_max = _decades(x for x, _ in everywhere)
    y_min, y_max = _decades(y for _, y in everywhere)
    y_max = max(y_max, y_min + 2)  # so that what stays looks flat

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x_min) / (x_max - x_min)
        up = (math.log10(y) - y_min) / (y_max - y_min)
        return (
            LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM),
        )

    for power in range(x_min, x_max + 1):
        x, y = place(10.0**power, 10.0**y_min)
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield _text(x, y + 15, f"{10**power:,}", anchor="middle")
    for power in range(y_min, y_max + 1):
        x, y = place(10.0**x_min, 10.0**power)
        right = WIDTH - RIGHT
        yield f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>'
        yield _text(x - 5, y + 4, f"{figure(10.0**power)} ×", anchor="end")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, panel.x, anchor="middle", bold=True)
    for number, (curve, points) in enumerate(zip(panel.curves, multiples, strict=True)):
        colour = COLOURS[number]
        places = [place(x, y) for x, y in points]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for x, y in places:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
        first = f"1 × is {figure(curve.points[0][1])} {curve.unit}"
        yield f'<rect x="{LEFT}" y="{13 + 16 * number}" width="10" height="10" fill="{colour}"/>'
        yield _text(LEFT + 16, 22 + 16 * number, f"{curve.name}; {first}")


def _decades(values: Iterator[float]) -> tuple[int, int]:
    powers = [math.log10(value) for value in values]
    first = math.floor(min(powers) + 1e-9)
    return first, max(first + 1, math.ceil(max(powers) - 1e-9))


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
