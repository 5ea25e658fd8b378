"""`python -m benchmarks [B1 B9 …]`: measures, prints the table, judges.

Exit code 0: every goal that was measured is met. 1: one is missed, or a
benchmark could not be carried out. 2: there is no such benchmark.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks.appending import appending, committing_together
from benchmarks.asking import asking
from benchmarks.echoing import one_at_a_time, pipelined
from benchmarks.encrypting import encrypting
from benchmarks.fanning_out import fanning_out
from benchmarks.idling import idling
from benchmarks.listing import listing
from benchmarks.paging import paging
from benchmarks.progress import begin, end
from benchmarks.projecting import projecting
from benchmarks.scratch import Plan, scratch_directory
from benchmarks.searching import searching
from benchmarks.starting import starting
from benchmarks.streaming import streaming
from benchmarks.verdicts import Question, Verdict, table

Benchmark = Callable[[Plan], list[Verdict]]

BENCHMARKS: dict[str, Benchmark] = {
    "B1": pipelined,
    "B2": one_at_a_time,
    "B3": streaming,
    "B4": fanning_out,
    "B5": appending,
    "B6": committing_together,
    "B7": paging,
    "B8": listing,
    "B9": idling,
    "B10": starting,
    "B11": asking,
    "B12": projecting,
    "B13": encrypting,
    "B14": searching,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure.")
    parser.add_argument("numbers", nargs="*", metavar="NUMBER", help="B1 B9 …; without: all")
    parser.add_argument("--full", action="store_true", help="also what takes long or much disk")
    parser.add_argument("--dir", type=Path, help="where to put files while measuring")
    options = parser.parse_args()
    chosen = [number.upper() for number in options.numbers] or list(BENCHMARKS)
    if unknown := [number for number in chosen if number not in BENCHMARKS]:
        parser.error(f"no such benchmark: {', '.join(unknown)} (there are {', '.join(BENCHMARKS)})")
    verdicts: list[Verdict] = []
    with scratch_directory(options.dir) as scratch:
        plan = Plan(scratch=scratch, full=options.full)
        for number in chosen:
            verdicts += _carry_out(number, plan)
    print(table(verdicts))
    return 1 if any(verdict.is_failure for verdict in verdicts) else 0


def _carry_out(number: str, plan: Plan) -> list[Verdict]:
    begin(number)
    begun = time.perf_counter()
    try:
        verdicts = BENCHMARKS[number](plan)
    except Exception as error:
        # One that can't be carried out must not hide what the others found.
        end("failed")
        traceback.print_exc()
        return [Question(number=number, what="").broken(f"{type(error).__name__}: {error}")]
    end(f"{time.perf_counter() - begun:.0f} s")
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
