"""P4: a full disk. What was acknowledged stays, reading goes on, a prompt gets a clear error, and
writing resumes by itself when there is room again.

Once with a small tmpfs that is filled and emptied (root), and once with strace, which refuses every
n-th write.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.clients import Finished, Refused, Talker
from faults.plan import Plan
from faults.progress import Progress
from faults.promises import Promises
from faults.results import CannotBeDone, Promised, Result
from faults.sabotage import take_out_a_line
from faults.serving import ServerProgram
from faults.stored import judge
from faults.tracing import Injection, injected, through_strace

_DISK_BYTES = 256 * 1024 * 1024
_ROOM_LEFT_BYTES = 96 * 1024
_PROMPT_CHARACTERS = 4_000
_CLEAR_CODES = ("unavailable", "read_only")
_PATIENCE_SECONDS = 60.0
_TMPFS = Promised(number="P4", what="disk full (tmpfs)")
_REFUSED_WRITES = Promised(number="P4", what="disk full at every n-th write")


def full_disk(plan: Plan) -> list[Result]:
    try:
        filled = _filled(plan)
    except CannotBeDone as reason:
        filled = _TMPFS.skipped(str(reason))
    try:
        refused = _refused_writes(plan)
    except CannotBeDone as reason:
        refused = _REFUSED_WRITES.skipped(str(reason))
    return [filled, refused]


def _filled(plan: Plan) -> Result:
    rounds = 2 if plan.quick else 10
    complaints: list[str] = []
    promises, refusals = Promises(), 0
    progress = Progress("P4 full disks", rounds)
    with _small_disk(plan.new_path("full") / "disk") as disk:
        with ServerProgram(disk / "data") as server:
            server.start()
            with Talker(server.port, promises) as talker:
                room = talker.create()
                for _ in range(rounds):
                    with _ballast(disk):
                        refusals += _talk_until_full(talker, complaints)
                        complaints += _reads(talker, room, promises)
                    complaints += _resumes(talker)
                    progress.step()
        if plan.sabotage:
            take_out_a_line(disk / "data", promises.acked())
        with ServerProgram(disk / "data") as server:
            server.start()
            complaints += judge(server.port, disk / "data", promises.acked())
    progress.end()
    today = f"{rounds} times full, {len(promises)} promises, {refusals} prompts refused"
    return _TMPFS.judged(complaints, today)


def _talk_until_full(talker: Talker, complaints: list[str]) -> int:
    """Prompts until three in a row are refused: then the disk is really full."""
    refusals = in_a_row = 0
    for _ in range(1_000):
        outcome = talker.ask(_PROMPT_CHARACTERS)
        if isinstance(outcome, Refused):
            refusals += 1
            in_a_row += 1
            if outcome.code not in _CLEAR_CODES:
                complaints.append(f"not a clear error: {outcome.code}: {outcome.message}")
            if in_a_row == 3:
                return refusals
        else:
            in_a_row = 0
    complaints.append("the disk never filled up: nothing was tried")
    return refusals


def _reads(talker: Talker, room: str, promises: Promises) -> list[str]:
    """Reads the newest page while nothing can be written."""
    newest = max(p.seq for p in promises.acked().promises if p.session_id == room)
    page = talker.page(room, view="entries", limit=5)
    if page["messages"] and page["messages"][-1]["seq"] >= newest:
        return []
    return [f"reading stopped: entry {newest} is not in the newest page"]


def _resumes(talker: Talker) -> list[str]:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        outcome = talker.ask()
        if isinstance(outcome, Finished) and outcome.state == "completed":
            return []
        if time.monotonic() > deadline:
            return [f"writing did not resume within {_PATIENCE_SECONDS:g} s: {outcome}"]


def _refused_writes(plan: Plan) -> Result:
    complaints: list[str] = []
    prompts = 40 if plan.quick else 200
    promises = refusals = failures = 0
    strides = (2, 5) if plan.quick else (2, 3, 4, 5, 7, 11)
    progress = Progress("P4 refused writes", len(strides))
    for stride in strides:
        data_dir, given = plan.new_path("refused") / "data", Promises()
        trace = data_dir.with_name("trace")
        full = Injection(calls=("pwrite64",), effect="error=ENOSPC", when=f"{stride + 3}+{stride}")
        with ServerProgram(data_dir, through=through_strace(full, trace)) as server:
            server.start()
            with Talker(server.port, given) as talker:
                talker.create()
                outcome = [talker.ask() for _ in range(prompts)]
        refusals += sum(isinstance(one, Refused) for one in outcome)
        complaints += [
            f"not a clear error: {one.code}: {one.message}"
            for one in outcome
            if isinstance(one, Refused) and one.code not in _CLEAR_CODES
        ]
        if plan.sabotage:
            take_out_a_line(data_dir, given.acked())
        with ServerProgram(data_dir) as server:
            server.start()
            complaints += judge(server.port, data_dir, given.acked())
        failures += injected(trace)
        promises += len(given)
        progress.step()
    progress.end()
    if not failures or not refusals:
        complaints.append("no write was refused: nothing was tried")
    today = f"{failures} writes refused, {promises} promises, {refusals} prompts refused"
    return _REFUSED_WRITES.judged(complaints, today)


@contextmanager
def _small_disk(path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        raise CannotBeDone("needs root, to mount a small tmpfs")
    path.mkdir()
    size = f"size={_DISK_BYTES}"
    mounting = ["mount", "-t", "tmpfs", "-o", size, "nplt-faults", str(path)]
    done = subprocess.run(mounting, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBeDone(f"can't mount a tmpfs: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@contextmanager
def _ballast(disk: Path) -> Iterator[None]:
    """A file that takes nearly all the room, until it is removed."""
    path = disk / "ballast"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, free - _ROOM_LEFT_BYTES))
    try:
        yield
    finally:
        path.unlink()
