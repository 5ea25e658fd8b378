"""`python -m benchmarks [B1 B9 …]`: measures, prints the table, judges.

Exit code 0: every goal that was measured is met. 1: one is missed, or a
benchmark could not be carried out. 2: there is no such benchmark, or it can't be
measured beside another checkout.

With `--smoke` no goal is judged: 1 only if one could not be carried out.
A benchmark is imported when its turn comes, so that one whose imports fail
does not keep the others from being measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from benchmarks.progress import begin, end
from benchmarks.record import DOCS, Machine, markdown_table, this_machine, write_table
from benchmarks.scratch import Plan, scratch_directory
from benchmarks.verdicts import Question, Verdict, only_run, table

Benchmark = Callable[[Plan], list[Verdict]]

BENCHMARKS = {
    "B1": "echoing:pipelined",
    "B2": "echoing:one_at_a_time",
    "B3": "streaming:streaming",
    "B4": "fanning_out:fanning_out",
    "B5": "appending:appending",
    "B6": "appending:committing_together",
    "B7": "paging:paging",
    "B8": "listing:listing",
    "B9": "idling:idling",
    "B10": "starting:starting",
    "B11": "asking:asking",
    "B12": "projecting:projecting",
    "B13": "encrypting:encrypting",
    "B14": "searching:searching",
    "B15": "whole_turn:whole_turn",
    "B16": "long_work:long_work",
    "B17": "growth:growth",
    "B18": "streaming:first_token",
    "B19": "api_door:api_door",
    "B20": "watching:watching",
    "B22": "http_turns:http_turns",
    "B23": "redis_turns:redis_turns",
}
"""The module in this package, and the function in it."""
COMPARABLE = ("B10", "B15")
"""They need nothing of a server but its command and the wire, so any checkout's will do."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure.")
    parser.add_argument("numbers", nargs="*", metavar="NUMBER", help="B1 B9 …; without: all")
    parser.add_argument("--full", action="store_true", help="also what takes long or much disk")
    parser.add_argument("--smoke", action="store_true", help="tiny counts; goals are not judged")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="figures as one JSON document")
    shown.add_argument(
        "--markdown", action="store_true", help="the table as docs/performance.md has it"
    )
    parser.add_argument("--dir", type=Path, help="where to put files while measuring")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="where to draw curves (B17)")
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="CHECKOUT",
        help=f"also measure the server in its .venv, by turns ({', '.join(COMPARABLE)})",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="everything, also what takes long; table and curves are written into docs",
    )
    options = parser.parse_args()
    if options.record and (options.numbers or options.smoke or options.baseline):
        parser.error("--record measures everything, and nothing beside it")
    machine = this_machine()
    possible = COMPARABLE if options.baseline else tuple(BENCHMARKS)
    chosen = [number.upper() for number in options.numbers] or possible
    if unknown := [number for number in chosen if number not in possible]:
        why = "can't be compared with a checkout" if options.baseline else "no such benchmark"
        parser.error(f"{why}: {', '.join(unknown)} (there are {', '.join(possible)})")
    verdicts: list[Verdict] = []
    with scratch_directory(options.dir) as scratch:
        plan = Plan(
            scratch=scratch,
            full=options.full or options.record,
            smoke=options.smoke,
            baseline=options.baseline,
            plots=options.plots or (DOCS if options.record else None),
        )
        for number in chosen:
            verdicts += _carry_out(number, plan)
    if options.smoke:
        verdicts = [only_run(verdict) for verdict in verdicts]
    if options.json:
        print(_document(verdicts, plan, machine))
    elif options.markdown:
        print(markdown_table(verdicts, machine))
    else:
        print(table(verdicts))
    if options.record:
        write_table(verdicts, machine)
    return 1 if any(verdict.is_failure for verdict in verdicts) else 0


def _carry_out(number: str, plan: Plan) -> list[Verdict]:
    begin(number)
    begun = time.perf_counter()
    try:
        verdicts = _benchmark(number)(plan)
    except Exception as error:
        # One that can't be carried out must not hide what the others found.
        end("failed")
        traceback.print_exc()
        return [Question(number=number, what="").broken(f"{type(error).__name__}: {error}")]
    end(f"{time.perf_counter() - begun:.0f} s")
    return verdicts


def _benchmark(number: str) -> Benchmark:
    module, _, function = BENCHMARKS[number].partition(":")
    found: Benchmark = getattr(import_module(f"benchmarks.{module}"), function)
    return found


def _document(verdicts: list[Verdict], plan: Plan, machine: Machine) -> str:
    document = {
        "machine": asdict(machine),
        "smoke": plan.smoke,
        "baseline": str(plan.baseline) if plan.baseline else None,
        "figures": [asdict(verdict) for verdict in verdicts],
    }
    return json.dumps(document, ensure_ascii=False, indent=2)


if __name__ == "__main__":
    sys.exit(main())
