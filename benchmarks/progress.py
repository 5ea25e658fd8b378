"""What the person who waits sees: one line per benchmark, on stderr.

stdout is for the table alone, so that it can be kept or compared.
"""

from __future__ import annotations

import sys


def begin(what: str) -> None:
    print(f"{what} ", end="", file=sys.stderr, flush=True)


def tick() -> None:
    print(".", end="", file=sys.stderr, flush=True)


def end(remark: str) -> None:
    print(f" {remark}", file=sys.stderr, flush=True)
