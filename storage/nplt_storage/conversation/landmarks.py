"""What holds in a conversation until it is told anew, and where it was told.

The instruction, the notebook, each widget's state and the newest compaction (or
the clear after which it holds no longer) may have been told long before the
entries one holds. So their numbers are kept
where one looks first: in the conversation's row, and in each rollback, which
leads back to older ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, TypeAlias, TypedDict

from nplt_storage.facts.entries import (
    ClearEntry,
    CompactionEntry,
    NotebookEntry,
    SystemInstructionEntry,
    WidgetEntry,
)

Told: TypeAlias = (
    SystemInstructionEntry | NotebookEntry | CompactionEntry | ClearEntry | WidgetEntry
)
Landmark: TypeAlias = tuple[str, str]
"""A kind, and which of that kind where there are several."""
WidgetSeqs: TypeAlias = tuple[tuple[str, int], ...]
"""By name, in the order of the names."""

INSTRUCTION: Final[Landmark] = (SystemInstructionEntry.kind, "")
NOTEBOOK: Final[Landmark] = (NotebookEntry.kind, "")
COMPACTION: Final[Landmark] = (CompactionEntry.kind, "")


class Marked(Protocol):
    """A row or a rollback; 0: it was never told."""

    @property
    def system_seq(self) -> int: ...
    @property
    def notebook_seq(self) -> int: ...
    @property
    def compaction_seq(self) -> int: ...
    @property
    def widget_seqs(self) -> WidgetSeqs: ...


class Marks(TypedDict):
    system_seq: int
    notebook_seq: int
    compaction_seq: int
    widget_seqs: WidgetSeqs


def widget_landmark(name: str) -> Landmark:
    return WidgetEntry.kind, name


def landmark_of(entry: Told) -> Landmark:
    if isinstance(entry, ClearEntry):
        return COMPACTION
    return entry.kind, entry.widget if isinstance(entry, WidgetEntry) else ""


def landmarks_of(marked: Marked) -> dict[Landmark, int]:
    landmarks = {
        INSTRUCTION: marked.system_seq,
        NOTEBOOK: marked.notebook_seq,
        COMPACTION: marked.compaction_seq,
    }
    landmarks |= {widget_landmark(name): seq for name, seq in marked.widget_seqs}
    return {landmark: seq for landmark, seq in landmarks.items() if seq}


def marks(landmarks: Mapping[Landmark, int]) -> Marks:
    """The way back from `landmarks_of`."""
    widgets = [(name, seq) for (kind, name), seq in landmarks.items() if kind == WidgetEntry.kind]
    return Marks(
        system_seq=landmarks.get(INSTRUCTION, 0),
        notebook_seq=landmarks.get(NOTEBOOK, 0),
        compaction_seq=landmarks.get(COMPACTION, 0),
        widget_seqs=tuple(sorted((name, seq) for name, seq in widgets if seq)),
    )


def with_widget(widget_seqs: WidgetSeqs, entry: WidgetEntry) -> WidgetSeqs:
    return tuple(sorted((dict(widget_seqs) | {entry.widget: entry.seq}).items()))
