"""The figures of a run in Markdown: the machine that it was on, and the table of
docs/performance.md.

The table stands between two marks there and is replaced whole, so that no figure is older
than the others. If other programs kept the machine busy when the run began, it says so.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.processes import ROOT
from benchmarks.verdicts import Verdict

DOCS = ROOT / "docs"
PAGE = DOCS / "performance.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
BUSY_LOAD = 0.5
"""More programs than this that wanted a processor in the last minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    processor: str
    processors: int
    memory_gib: float
    system: str
    python: str
    event_loop: str
    load: float
    """Before the run."""
    day: str

    @property
    def is_busy(self) -> bool:
        return self.load > BUSY_LOAD

    def __str__(self) -> str:
        summary = (
            f"{self.day}, {self.processors} × {self.processor}, {self.memory_gib:.0f} GiB, "
            f"{self.system}, Python {self.python}, {self.event_loop}."
        )
        if self.is_busy:
            summary += (
                f" Other programs kept this machine busy (load {self.load:.1f} before the run): "
                "times and rates are much too bad, and ratios rough."
            )
        return summary


def this_machine() -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        processor=_processor(),
        processors=os.cpu_count() or 1,
        memory_gib=memory / 2**30,
        system=f"{platform.system()} {platform.release().split('-')[0]}",
        python=platform.python_version(),
        event_loop="uvloop" if find_spec("uvloop") else "asyncio",
        load=os.getloadavg()[0],
        day=time.strftime("%Y-%m-%d"),
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def markdown_table(verdicts: Sequence[Verdict], machine: Machine) -> str:
    return "\n".join([f"{machine}", "", *_rows(verdicts)])


def write_table(verdicts: Sequence[Verdict], machine: Machine, page: Path = PAGE) -> None:
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise LookupError(f"{page} has no marks for the table")
    table = markdown_table(verdicts, machine)
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")


def _rows(verdicts: Sequence[Verdict]) -> list[str]:
    rows = [("", "what", "goal", "found", "", "measured"), ("---",) * 6]
    rows += [(v.number, v.what, v.goal, v.today, v.outcome, v.details) for v in verdicts]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
