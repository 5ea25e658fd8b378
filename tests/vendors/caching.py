"""How many tokens of a request a vendor has seen before, as its cache would tell.

Anthropic, from its documentation: a prefix is written where a block carries
`cache_control`, and read where an earlier request wrote one, at most twenty blocks
before such a mark; tools come first, then the system prompt, then messages; another
model is another cache. OpenAI, from its documentation: the longest prefix ever sent is
read by itself, from 1,024 tokens on, in steps of 128.

Assumed: nothing expires, and a prefix can be read as soon as it was sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from tests.vendors.tokens import CHARACTERS_PER_TOKEN, tokens_of

LOOK_BACK_BLOCKS = 20
STEP_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of what was sent: all of it, what came from the cache, what was put there."""

    input_tokens: int
    read_tokens: int = 0
    written_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    text: str
    marked: bool
    condition: str = ""  # no token, but what is known of it is known under this only


class MarkedPrefixes:
    """Anthropic's cache."""

    def __init__(self, *, tokens_min: int) -> None:
        self._tokens_min = tokens_min
        self._known: set[bytes] = set()

    def take(self, model: str, blocks: Sequence[Block]) -> Usage:
        digests, totals = _prefixes(model, blocks)
        marks = [place for place, block in enumerate(blocks) if block.marked]
        read_through = self._longest_known(digests, marks)
        read = 0 if read_through is None else totals[read_through]
        self._known.update(digests[mark] for mark in marks if totals[mark] >= self._tokens_min)
        last = totals[marks[-1]] if marks else 0
        return Usage(
            input_tokens=totals[-1] if totals else 0,
            read_tokens=read,
            written_tokens=last - read if last >= self._tokens_min and last > read else 0,
        )

    def _longest_known(self, digests: Sequence[bytes], marks: Sequence[int]) -> int | None:
        for mark in reversed(marks):
            for place in range(mark, max(mark - LOOK_BACK_BLOCKS, -1), -1):
                if digests[place] in self._known:
                    return place
        return None


def _prefixes(model: str, blocks: Sequence[Block]) -> tuple[list[bytes], list[int]]:
    running = hashlib.sha256(model.encode())
    digests, totals, total = [], [], 0
    for block in blocks:
        running.update(f"{block.condition}{len(block.text)}:{block.text}".encode())
        total += tokens_of(block.text)
        digests.append(running.digest())
        totals.append(total)
    return digests, totals


class SteppedPrefixes:
    """OpenAI's cache."""

    def __init__(self, *, tokens_min: int) -> None:
        self._tokens_min = tokens_min
        self._known: set[bytes] = set()

    def take(self, model: str, prompt: str, *, counts_writes: bool = False) -> Usage:
        running = hashlib.sha256(model.encode())
        read, hit = 0, True
        step = STEP_TOKENS * CHARACTERS_PER_TOKEN
        for end in range(step, len(prompt) + 1, step):
            running.update(prompt[end - step : end].encode())
            digest = running.digest()
            hit = hit and digest in self._known
            self._known.add(digest)
            if hit:
                read = end // CHARACTERS_PER_TOKEN
        read = read if read >= self._tokens_min else 0
        last = len(prompt) // step * STEP_TOKENS
        written = last - read if counts_writes and last >= self._tokens_min else 0
        return Usage(input_tokens=tokens_of(prompt), read_tokens=read, written_tokens=written)
