"""`python -m tests.fuzz [TARGET …]`: fuzzes them with atheris, guided by coverage.

The time (`--seconds`, 600) is divided among the targets. What is found on the way goes
into a directory of its own; inputs that break a rule stay there, and are named.
`--keep` adds to the corpus what took new ways through the code.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

Way: TypeAlias = tuple[str, int, int]
"""A file, and two lines of it that ran one after the other."""

INPUT_BYTES_MAX = 4096
INPUT_SECONDS_MAX = 10
_NAMES = ("frames", "messages", "files", "documents")
_CORPUS = Path(__file__).parent / "corpus"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(_NAMES))
    parser.add_argument("--seconds", type=int, default=600, help="for all of them together")
    parser.add_argument("--keep", action="store_true", help="add to the corpus")
    parser.add_argument("--worker", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        return _work(*options.worker)
    targets = options.targets or list(_NAMES)
    if unknown := set(targets) - set(_NAMES):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    scratch = Path(tempfile.mkdtemp(prefix="nplt-fuzz-"))
    seconds = max(1, options.seconds // len(targets))
    broken = [target for target in targets if not _fuzz(target, scratch, seconds)]
    if options.keep:
        for target in targets:
            _keep(target, scratch / target)
    if not broken:
        shutil.rmtree(scratch)
    return 1 if broken else 0


def _fuzz(target: str, scratch: Path, seconds: int) -> bool:
    found = scratch / target
    found.mkdir()
    done = _run(
        target,
        f"-max_total_time={seconds}",
        f"-artifact_prefix={scratch}/{target}-",
        str(found),
        str(_CORPUS / target),
    )
    counts = re.findall(r"^#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+)", done.stderr, re.M)
    runs, covered, features = counts[-1] if counts else ("0", "0", "0")
    inputs = sorted(scratch.glob(f"{target}-*"))
    summary = f"{int(runs):,} inputs, {covered} places and {features} features of the code reached"
    print(f"{target:10} {summary}, {'BROKEN' if done.returncode else 'nothing found'}", flush=True)
    if done.returncode:
        lines = [*done.stdout.splitlines()[-30:], *done.stderr.splitlines()[-6:]]
        print("\n".join(lines))
        print("\n".join(f"the input: {path}" for path in inputs))
    return done.returncode == 0


def _keep(target: str, found: Path) -> None:
    """Adds what takes a way through the code that nothing in the corpus takes, shortest first.
    Nothing is removed: some of it once broke a rule, on ways that are taken often."""
    logging.disable()
    run: Callable[[bytes], None] = importlib.import_module("tests.fuzz.targets").TARGETS[target]
    known: set[Way] = set()
    for path in (_CORPUS / target).iterdir():
        known |= _ways(run, path.read_bytes())
    for path in sorted(found.iterdir(), key=lambda path: path.stat().st_size):
        ways = _ways(run, path.read_bytes())
        if not ways <= known:
            known |= ways
            shutil.copy(path, _CORPUS / target / path.name)


def _ways(run: Callable[[bytes], None], data: bytes) -> set[Way]:
    ways: set[Way] = set()
    before: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if "nplt_" not in code.co_filename:
            return None
        if event == "line":
            ways.add((code.co_filename, before.get(frame, 0), frame.f_lineno))
            before[frame] = frame.f_lineno
        return trace

    sys.settrace(trace)
    try:
        run(data)
    finally:
        sys.settrace(None)
    return ways


def _run(target: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz", "--worker", target]
    limits = [f"-max_len={INPUT_BYTES_MAX}", f"-timeout={INPUT_SECONDS_MAX}", "-rss_limit_mb=2048"]
    return subprocess.run(
        [*command, *limits, *options], capture_output=True, text=True, errors="replace", check=False
    )


def _work(target: str, *options: str) -> int:
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["nplt_protocol", "nplt_storage"]):
        targets = importlib.import_module("tests.fuzz.targets")
    logging.disable()  # each torn file is reported
    atheris.Setup([target, *options], targets.TARGETS[target])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
