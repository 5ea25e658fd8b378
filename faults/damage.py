"""DAMAGE: a corpus of damaged directories through doctor, backup, restore, start, wire and repair.

Every program runs with 512 MiB of address space. After each step every entry whose checksum holds
can be read, the conversation beside is as it was, byte by byte, and so is what links lead to. Where
strace is installed, nothing outside of the directory is opened either.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.fork_server import ForkServer
from tests.support.raw_client import SESSION_UPDATE, RawClient

from faults.clients import NotGranted, Talker
from faults.damaged_directories import (
    UNHARMED,
    Case,
    Damaged,
    Original,
    all_cases,
    make,
    make_original,
)
from faults.plan import Plan, memory_directory
from faults.progress import Progress
from faults.promises import Promises
from faults.results import Promised, Result
from faults.serving import PATIENCE_SECONDS, DidNotStart, ForkedServer, clean_environment, log_path

MEMORY_BYTES_MAX = 512 * 1024 * 1024
_QUICK_STRIDE = 5
_LEFT_OUT = 3
_OPENED = re.compile(r"= \d+<([^>]*)>")


def damage(plan: Plan) -> list[Result]:
    cases = all_cases()[:: _QUICK_STRIDE if plan.quick else 1]
    progress = Progress("DAMAGE directories", len(cases))
    complaints: list[str] = []
    with memory_directory(plan) as directory, limited_fork_server() as forks:
        original = make_original(directory)
        for case in cases:
            output = check_case(case, original, forks, directory, sabotage=plan.sabotage)
            complaints += [f"{case}: {one}" for one in output]
            progress.step(f"{len(complaints)} complaints")
    progress.end()
    watched = sum("link" in case.kind for case in cases) if shutil.which("strace") else 0
    today = f"{len(cases)} directories in {MEMORY_BYTES_MAX >> 20} MiB, {watched} under strace"
    promised = Promised(number="DAMAGE", what="damaged directories cost what is damaged")
    return [promised.judged(complaints, today)]


@contextmanager
def limited_fork_server() -> Iterator[ForkServer]:
    """All that is forked from it has little memory. Threads reserve address space for heaps of
    their own; they share one here, so that the limit is one of memory."""
    environment = {**clean_environment(), "MALLOC_ARENA_MAX": "1"}
    with ForkServer(environment) as forks:
        resource.prlimit(forks.pid, resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        yield forks


def check_case(
    case: Case, original: Original, forks: ForkServer, directory: Path, *, sabotage: bool = False
) -> list[str]:
    place = Path(tempfile.mkdtemp(dir=directory))
    try:
        damaged = make(case, original, place)
        if sabotage:  # asks for an entry that nobody has
            sound = {**damaged.sound, case.session_id: frozenset({10**6})}
            damaged = replace(damaged, sound=sound)
        watch = "link" in case.kind and shutil.which("strace") is not None
        with _watched(forks.pid, place / "strace") if watch else nullcontext():
            complaints = _Check(case, original, damaged, forks).all_steps()
        return complaints + _opened_outside(place / "strace", damaged)
    finally:
        shutil.rmtree(place)


class _Check:
    def __init__(self, case: Case, original: Original, damaged: Damaged, forks: ForkServer) -> None:
        self._case = case
        self._original = original
        self._damaged = damaged
        self._forks = forks
        self._complaints: list[str] = []
        self._outside = _contents(damaged.outside)
        self._unharmed = _file_of(original.data_dir, UNHARMED).read_bytes()

    def all_steps(self) -> list[str]:
        data_dir = self._damaged.data_dir
        copy = data_dir.with_name("copy")
        self._examine(data_dir)
        self._back_up(copy)
        if copy.exists():
            self._serve("the copy", copy)
        self._serve("at first", data_dir)
        if not self._case.is_thing:
            self._repair(data_dir)
            self._serve("after the repair", data_dir)
        if _contents(self._damaged.outside) != self._outside:
            self._complaints.append("what is outside was changed")
        return self._complaints

    # Commands

    def _examine(self, data_dir: Path) -> None:
        code, output = self._run("doctor", str(data_dir))
        if code not in (0, 1):
            self._complain("doctor", f"exit code {code}: {output}")
        name = str(self._damaged.path.relative_to(data_dir))
        if self._case.is_thing and not self._names(output, name):
            self._complain("doctor", f"does not name what it refused: {output}")

    def _names(self, output: str, name: str) -> bool:
        """A blob is named with the conversation that has it."""
        return name in output or (self._case.part == "blob" and Path(name).name in output)

    def _back_up(self, copy: Path) -> None:
        data_dir = self._damaged.data_dir
        code, output = self._run("backup", "--data-dir", str(data_dir), str(copy))
        is_left_out = self._case.is_thing and self._case.part != "index"  # which is not copied
        if self._case.kind == "directory" and self._case.part in ("blob", "live"):
            is_left_out = False  # an empty folder harms nobody
        if code != (_LEFT_OUT if is_left_out else 0):
            self._complain("backup", f"exit code {code}: {output}")
        elif is_left_out and str(self._damaged.path.relative_to(data_dir)) not in output:
            self._complain("backup", f"does not name what it left out: {output}")

    def _repair(self, data_dir: Path) -> None:
        session_id = self._case.session_id
        arguments = ("--data-dir", str(data_dir), "--user", "local", session_id)
        code, output = self._run("repair", *arguments)
        if code:
            self._complain("repair", f"exit code {code}: {output}")
            return
        data = _file_of(data_dir, session_id).read_bytes()
        lines = {line.removeprefix(b",") for line in data.splitlines()}
        kept = {seq for seq, line in self._original.entries[session_id].items() if line in lines}
        self._compare("the repaired file", session_id, kept)
        try:
            messages = json.loads(data)["messages"]
            if [message["seq"] for message in messages] != list(range(1, len(messages) + 1)):
                self._complain("repair", "the entries are not in order")
        except ValueError as error:
            self._complain("repair", f"what it made is no document: {error}")
        self._check_unharmed("repair", data_dir)

    def _run(self, *arguments: str) -> tuple[int, str]:
        with tempfile.TemporaryFile("w+b") as out, Path(os.devnull).open("rb") as nothing:
            streams = [nothing.fileno(), out.fileno(), out.fileno()]
            environment = clean_environment()
            pid = self._forks.run(
                "nplt-server", arguments, environment=environment, streams=streams
            )
            code = self._forks.wait_for(pid)
            out.seek(0)
            output = out.read().decode(errors="replace")
        if "Traceback" in output or "MemoryError" in output:
            self._complain(arguments[0], output[-500:])
        return code, output[-500:]

    # The server

    def _serve(self, when: str, data_dir: Path) -> None:
        with ForkedServer(self._forks, data_dir) as server:
            try:
                server.start()
                with Talker(server.port, Promises()) as talker:
                    self._ask(when, server.port, talker, data_dir)
            except (DidNotStart, NotGranted, OSError) as error:
                self._complain(when, f"is not served: {error}")
        log = log_path(data_dir).read_text(errors="replace")
        if "Traceback" in log or "MemoryError" in log:
            self._complain(when, log[-500:])
        self._check_unharmed(when, data_dir)

    def _ask(self, when: str, port: int, talker: Talker, data_dir: Path) -> None:
        if self._case.part == "trash":
            with RawClient(port, timeout=PATIENCE_SECONDS) as client:
                client.hello()
                wanted = {"session_id": self._case.session_id, "deleted": False}
                # That it is damaged is an error, and it is back all the same.
                reply = client.request(SESSION_UPDATE, wanted)
                is_back = _is_here(data_dir, self._case.session_id)
                if self._damaged.sound[self._case.session_id] and not is_back:
                    self._complain(when, f"it can't be restored from the trash: {reply.text}")
        for session_id in {UNHARMED, self._case.session_id}:
            if not _is_here(data_dir, session_id):
                continue  # it was left out of the copy, and named
            try:
                page = talker.page(session_id, view="entries", limit=200)
            except NotGranted as refusal:
                if self._damaged.sound[session_id]:
                    self._complain(when, f"can't be read: {refusal}")
                continue
            self._compare(when, session_id, set(self._as_they_were(session_id, page["messages"])))

    def _as_they_were(self, session_id: str, messages: list[dict[str, Any]]) -> Iterator[int]:
        originals = self._original.entries[session_id]
        for message in messages:
            seq = message["seq"]
            if seq in originals:
                written = json.loads(originals[seq])
                names = ("id", "kind", "content", "timestamp")
                if all(message.get(name) == written.get(name) for name in names):
                    yield seq

    def _compare(self, when: str, session_id: str, found: set[int]) -> None:
        if missing := self._damaged.sound[session_id] - found:
            whose = "beside" if session_id == UNHARMED else "harmed"
            self._complain(when, f"{whose}: sound entries are not there: {sorted(missing)}")

    def _check_unharmed(self, when: str, data_dir: Path) -> None:
        if not _is_here(data_dir, UNHARMED):
            self._complain(when, "the conversation beside is gone")
        elif _file_of(data_dir, UNHARMED).read_bytes() != self._unharmed:
            self._complain(when, "the conversation beside is not as it was")

    def _complain(self, when: str, what: str) -> None:
        self._complaints.append(f"{when}: {what.strip()}")


def _file_of(data_dir: Path, session_id: str) -> Path:
    (path,) = (data_dir / "history").glob(f"session_*_{session_id}.json")
    return path


def _is_here(data_dir: Path, session_id: str) -> bool:
    return any((data_dir / "history").glob(f"session_*_{session_id}.json"))


def _contents(directory: Path) -> dict[str, int]:
    """Of every file its checksum, of everything else nothing."""
    return {
        str(path): zlib.crc32(path.read_bytes()) if path.is_file() else 0
        for path in sorted(directory.rglob("*"))
    }


# ------------------------------------------------------------------------------
# Nothing outside is opened


@contextmanager
def _watched(pid: int, log: Path) -> Iterator[None]:
    """Writes down what the process, and all that is forked from it, opens."""
    command = ["strace", "-f", "-y", "-e", "trace=open,openat,openat2,creat", "-o", str(log)]
    process = subprocess.Popen(
        [*command, "-p", str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    process.stderr.readline()  # it is attached
    try:
        yield
    finally:
        process.terminate()
        process.communicate()


def _opened_outside(log: Path, damaged: Damaged) -> list[str]:
    if not log.exists():
        return []
    opened = {Path(match[1]) for match in _OPENED.finditer(log.read_text(errors="replace"))}
    if not any(path.is_relative_to(damaged.data_dir) for path in opened):
        return ["strace saw nothing: nothing was tried"]
    outside = [path for path in opened if path.is_relative_to(damaged.outside)]
    return [f"{path.name} was opened, which is outside" for path in outside]
