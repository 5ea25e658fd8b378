"""The port of counting: how many tokens a text takes.

A counter is exact for the models whose vocabulary it has and near for the
others; `Correction` brings its figures to what a provider really charged.
Special tokens spelled out in a text are plain text here, as they must be in
what is sent.
"""

from __future__ import annotations

from typing import Protocol

from nplt_server.tokens.characters import CharacterCounter
from nplt_server.tokens.o200k import load_o200k


class TokenCounter(Protocol):
    @property
    def name(self) -> str:
        """Said beside every figure: whose count it is."""
        ...

    def count(self, text: str) -> int: ...


def best_counter() -> TokenCounter:
    """The exact counter where its package is installed, else the estimate.

    Loading the vocabulary takes a tenth of a second or two: call it in a thread.
    """
    return load_o200k() or CharacterCounter()
