"""What there is to say about a text by its own words, at any length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nplt_server.detail.cut import cut, one_line
from nplt_server.detail.passages import (
    TELLING_WEIGHT,
    Passage,
    fit_passages,
    gist_seam,
    summary_seam,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageOutline:
    text: str
    passages: Sequence[Passage]
    label: str = ""
    """What a look at the whole tells, in brackets."""

    def summary(self, characters_max: int) -> str:
        label = f"{self.label}\n" if self.label else ""
        room = characters_max - len(label)
        return label + fit_passages(self.text, self.passages, room, seam=summary_seam)

    def gist(self, characters_max: int) -> str:
        label = f"{self.label} " if self.label else ""
        telling = [p for p in self.passages if p.weight >= TELLING_WEIGHT and not p.is_heading]
        room = characters_max - len(label)
        said = fit_passages(self.text, telling or self.passages, room, seam=gist_seam)
        # Of nothing but white space, or one endless character, there is nothing to quote.
        said = one_line(label + said) or summary_seam(self.text, 0, len(self.text))
        return cut(said or "[blank]", characters_max)
