"""Which pictures go along with a call, where there are more than vendors take. Pure.

All of them, until they are too many: then the newest, to half of what is taken, so that
it does not happen again with every picture. Others are named. What was sent is changed by
that, so a new epoch begins with it; and what an epoch began with follows from the record,
so it is the same in another life.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

PICTURES_BYTES_MAX: Final = 16 * 1024 * 1024
"""In one call: vendors take some thirty megabytes, and what is sent is a third longer."""

Mention: TypeAlias = tuple[int, str]
"""The number of a prompt, and the id of a file that goes with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    seq: int
    """Of the prompt it goes with; with several, it is sent several times."""
    file_id: str
    size: int

    @property
    def mention(self) -> Mention:
        return self.seq, self.file_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    shown: frozenset[Mention]
    needs_epoch: bool


def choose_pictures(pictures: Sequence[Picture], *, epoch_seq: int) -> Choice:
    """Of those that could be shown, oldest first."""
    kept = _newest([each for each in pictures if each.seq < epoch_seq])
    kept += [each for each in pictures if each.seq > epoch_seq]
    is_full = _size(kept) > PICTURES_BYTES_MAX
    shown = _newest(pictures) if is_full else kept
    return Choice(shown=frozenset(each.mention for each in shown), needs_epoch=is_full)


def _newest(pictures: Sequence[Picture]) -> list[Picture]:
    if _size(pictures) <= PICTURES_BYTES_MAX:
        return list(pictures)
    newest_seq = pictures[-1].seq
    kept: list[Picture] = []
    # A prompt's own in the order they were named, whichever of them fit.
    for picture in sorted(pictures, key=lambda each: each.seq, reverse=True):
        # Whoever sends many at once asks about all of them.
        share = 1 if picture.seq == newest_seq else 2
        if _size(kept) + picture.size <= PICTURES_BYTES_MAX // share:
            kept.append(picture)
    return kept


def _size(pictures: Sequence[Picture]) -> int:
    return sum(picture.size for picture in pictures)
