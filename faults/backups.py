"""BACKUP: copies of a data directory under load are whole, and can be served.

`nplt-server backup` runs while many clients prompt. `doctor` must find nothing wrong with a copy,
the copy must hold everything that was acknowledged before copying began, and a server on the copy
must open every entry. Then the same with `cp`, as people do it: the files first and the catalogue
last, so that the catalogue knows more than the files. Every conversation of such a copy must open,
after a repair if need be, with what its file has.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.raw_client import ATTACH, ERROR, REPAIR, RawClient

from faults.clients import Talker, crowd
from faults.comparison import Acked, verdict
from faults.plan import Plan
from faults.progress import Progress
from faults.promises import Promises
from faults.results import Promised, Result
from faults.sabotage import take_out_a_line
from faults.serving import PATIENCE_SECONDS, ServerProgram, clean_environment
from faults.stored import from_the_files, through_the_wire, wait_for_lists

_CONVERSATIONS = 4


@dataclass(slots=True)
class Copies:
    count: int = 0
    conversations: int = 0
    promises: int = 0
    behind: int = 0
    """Conversations whose file was older than the catalogue."""
    complaints: list[str] = field(default_factory=list)


def backups(plan: Plan) -> list[Result]:
    count = 3 if plan.quick else 25
    made, plain = Copies(), Copies()
    progress = Progress("BACKUP copies", 2 * count)
    with ServerProgram(plan.new_path("backup") / "data") as server:
        promises, chance = Promises(), plan.chance("backup")
        server.start()
        with Talker(server.port, promises) as talker:
            for _ in range(_CONVERSATIONS):
                talker.create()
                talker.ask()
        with crowd(server.port, promises, chance):
            try:
                for number in range(2 * count):
                    promises.wait_for(len(promises) + 20, seconds_max=PATIENCE_SECONDS)
                    acked, target = promises.acked(), plan.new_path("backup") / "copy"
                    if number % 2:
                        _copy(server.data_dir, target, promises)
                    else:
                        _back_up(server.data_dir, target, made)
                        in_the_files, unreadable = from_the_files(target)
                        lost = [s for s in verdict(acked, in_the_files) if s.startswith("lost")]
                        made.complaints += [*unreadable, *lost]
                    if plan.sabotage:
                        take_out_a_line(target, acked)
                        (target / "catalog.sqlite").unlink(missing_ok=True)
                    _judge(target, acked, plain if number % 2 else made)
                    shutil.rmtree(target)
                    progress.step()
            finally:
                server.kill()
    progress.end()
    if not plain.behind:
        plain.complaints.append("no file was older than the catalogue: nothing was tried")
    promised = Promised(number="BACKUP", what="nplt-server backup under load: whole and served")
    by_hand = Promised(number="BACKUP", what="cp under load: the files win over the catalogue")
    shown = f"{made.count} copies, {made.conversations} conversations, {made.promises:,} promises"
    others = f"{plain.count} copies, {plain.conversations} conversations, {plain.behind} behind"
    return [promised.judged(made.complaints, shown), by_hand.judged(plain.complaints, others)]


def _back_up(data_dir: Path, target: Path, copies: Copies) -> None:
    for command in (
        ["backup", "--data-dir", str(data_dir), str(target)],
        ["doctor", str(target)],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "nplt_server", *command],
            capture_output=True,
            text=True,
            check=False,
            env=clean_environment(),
        )
        if done.returncode:
            complaint = (done.stderr or done.stdout).strip()[-300:]
            copies.complaints.append(f"{command[0]} ended with {done.returncode}: {complaint}")


def _copy(data_dir: Path, target: Path, promises: Promises) -> None:
    """Copies file by file, in the worst order: the catalogue knows more than the files."""
    target.mkdir()
    for part in ("history", "files", "trash"):
        shutil.copytree(data_dir / part, target / part, ignore=shutil.ignore_patterns(".*"))
    given_up = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < given_up:
        promises.wait_for(len(promises) + 20, seconds_max=PATIENCE_SECONDS)
        _copy_catalogue(data_dir, target)
        if _knows_more(target):
            return


def _copy_catalogue(source: Path, target: Path) -> None:
    for name in ("catalog.sqlite", "catalog.sqlite-wal"):
        (target / name).unlink(missing_ok=True)
        if (source / name).exists():
            shutil.copy(source / name, target / name)


def _knows_more(target: Path) -> bool:
    """Whether the copied catalogue knows a longer file than the one that was copied. A catalogue
    that was copied during a write can't be read; the server would rebuild it from the files.
    Another copy is asked, because reading one may change it."""
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        _copy_catalogue(target, Path(place))
        try:
            with closing(sqlite3.connect(Path(place) / "catalog.sqlite")) as catalogue:
                known = catalogue.execute("SELECT file, size FROM conversations").fetchall()
        except sqlite3.DatabaseError:
            return False
    files = {path.name: path.stat().st_size for path in (target / "history").rglob("*.json")}
    return any(size > files.get(name, size) for name, size in known)


def _judge(target: Path, acked: Acked, copies: Copies) -> None:
    """Checks that the copy has everything acknowledged before copying began, and that each
    conversation opens."""
    with ServerProgram(target) as server:
        server.start()
        copies.count += 1
        wait_for_lists(server.port, acked)
        with (
            Talker(server.port, Promises()) as talker,
            RawClient(server.port, timeout=PATIENCE_SECONDS) as client,
        ):
            client.hello()
            for row in talker.rows():
                copies.conversations += 1
                copies.behind += bool(row.get("warning"))
                copies.complaints += _dead_end(client, row["session_id"])
        found, complaints = through_the_wire(server.port)
        copies.promises += len(acked.promises)
        lost = [
            complaint
            for complaint in verdict(acked, found)
            if complaint.startswith(("lost", "twice"))
        ]
        copies.complaints += [*complaints, *lost]


def _dead_end(client: RawClient, session_id: str) -> list[str]:
    asked = {"session_id": session_id}
    if client.request(ATTACH, asked).type == ERROR:
        client.request(REPAIR, asked)
        refused = client.request(ATTACH, asked)
        if refused.type == ERROR:
            return [f"a dead end: {session_id}: {refused.text}"]
    return []
