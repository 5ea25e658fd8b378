"""Byte strings cut into pieces, the way a network would."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


cut_points = st.lists(st.integers(0, 400), max_size=12)
