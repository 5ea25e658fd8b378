"""What was changed, and of which entry: for whoever asks why it is shown so."""

from __future__ import annotations

from collections.abc import Iterable

from nplt_server.providers.compiling.compiled import Repair, RepairCode


class Repairs:
    def __init__(self) -> None:
        self._noted: list[Repair] = []

    def note(self, code: RepairCode, seq: int, detail: str = "") -> None:
        self._noted.append(Repair(code=code, seq=seq, detail=detail))

    def note_all(self, codes: Iterable[RepairCode], seq: int, detail: str = "") -> None:
        for code in codes:
            self.note(code, seq, detail)

    def extend(self, repairs: Iterable[Repair]) -> None:
        self._noted.extend(repairs)

    def so_far(self) -> tuple[Repair, ...]:
        return tuple(self._noted)
