"""P3: a server may die at every system call of a commit.

strace kills the server at the k-th call of a kind, for k = 1, 2, … until a run ends without that
many calls. A run repairs a torn file, goes on in an old conversation and creates a new one. Calls
count from the start of the server; only `openat`, which Python calls thousands of times when it
starts, counts from the moment the server listens.
"""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.support.fork_server import ForkServer
from tests.support.raw_client import Closed

from faults.clients import NotGranted, Refused, Talker
from faults.comparison import Acked
from faults.plan import Plan
from faults.progress import Progress
from faults.promises import Promises
from faults.restarts import Tally
from faults.results import Promised, Result
from faults.sabotage import take_out_a_line
from faults.serving import DidNotStart, ForkedServer, ServerProgram, clean_environment
from faults.stored import conversation_files, judge
from faults.tracing import Attached, Injection, check_strace, most_calls, through_strace

CALLS = (
    ("openat",),
    ("pwrite64",),
    ("write",),
    ("fsync",),
    ("fdatasync",),
    ("rename", "renameat", "renameat2"),
    ("ftruncate",),
    ("unlink", "unlinkat"),
)
_NEEDED = ("openat", "pwrite64", "fsync", "fdatasync", "rename", "ftruncate")
"""A commit makes each of these calls; a kind that never occurs is a mistake in this check."""
_QUICK_STRIDE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A data directory with a torn conversation, and what was acknowledged of it."""

    data_dir: Path
    acked: Acked
    session_id: str


@dataclass(slots=True, kw_only=True)
class _Deaths:
    by_call: dict[str, int] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)


class NotInjected(Exception):
    """strace did not kill at a call that it was to kill at: nothing was tested."""


def system_calls(plan: Plan) -> list[Result]:
    check_strace()
    deaths = _Deaths()
    progress = Progress("P3 deaths")
    with ForkServer(clean_environment()) as fork_server:
        beginning = begin(plan, fork_server)
        for calls in CALLS:
            for k in count(1, _QUICK_STRIDE if plan.quick else 1):
                injection = Injection(calls=calls, effect="signal=SIGKILL", when=str(k))
                if not _die_at(plan, fork_server, beginning, injection, deaths.tally):
                    break
                deaths.by_call[calls[0]] = deaths.by_call.get(calls[0], 0) + 1
                progress.step(f"at {calls[0]} {k}, {deaths.tally}")
    progress.end()
    promised = Promised(number="P3", what="death at each system call")
    counts = ", ".join(f"{call} {times}" for call, times in deaths.by_call.items())
    never = [f"no {call} was ever made" for call in _NEEDED if call not in deaths.by_call]
    return [promised.judged([*deaths.tally.complaints, *never], f"{deaths.tally}; {counts}")]


def begin(plan: Plan, fork_server: ForkServer) -> Beginning:
    data_dir = plan.new_path("beginning") / "data"
    promises = Promises()
    with ForkedServer(fork_server, data_dir) as server:
        server.start()
        with Talker(server.port, promises) as talker:
            session_id = talker.create()
            for _ in range(3):
                talker.ask()
    (path,) = conversation_files(data_dir)
    with path.open("ab") as file:
        file.write(b',{"seq":torn')
    return Beginning(data_dir=data_dir, acked=promises.acked(), session_id=session_id)


def _die_at(
    plan: Plan, fork_server: ForkServer, beginning: Beginning, injection: Injection, tally: Tally
) -> bool:
    """Whether the server died at that call; if not, the run was completed."""
    data_dir = plan.new_path("death") / "data"
    shutil.copytree(beginning.data_dir, data_dir)
    promises = Promises(beginning.acked)
    has_died = _tell_until_dead(data_dir, injection, promises, beginning.session_id)
    if plan.sabotage:
        take_out_a_line(data_dir, promises.acked())
    at = f"at {injection.calls[0]} {injection.when}: "
    with ForkedServer(fork_server, data_dir) as server:
        server.start()
        tally.complain(
            at + complaint for complaint in judge(server.port, data_dir, promises.acked())
        )
        with Talker(server.port, promises) as talker:
            talker.attach(beginning.session_id)
            if isinstance(talker.ask(), Refused):
                tally.complain([f"{at}the conversation does not go on"])
        tally.complain(
            at + complaint for complaint in judge(server.port, data_dir, promises.acked())
        )
    tally.deaths += 1
    tally.promises += len(promises)
    shutil.rmtree(data_dir.parent)
    return has_died


def _tell_until_dead(
    data_dir: Path, injection: Injection, promises: Promises, session_id: str
) -> bool:
    trace = data_dir.with_name("trace")
    late = "openat" in injection.calls
    through = () if late else through_strace(injection, trace)
    with ServerProgram(data_dir, through=through) as server:
        try:
            server.start()
        except DidNotStart:
            if server.was_killed():
                return True
            raise
        try:
            with Attached(server.pid, injection, trace) if late else nullcontext():
                _story(server.port, promises, session_id)
        except (Closed, OSError):
            if server.was_killed():
                return True
            raise
    if most_calls(trace) >= int(injection.when):
        raise NotInjected(f"{injection.calls[0]} {injection.when} came, and nobody died")
    return False


def _story(port: int, promises: Promises, session_id: str) -> None:
    with Talker(port, promises) as talker:
        talker.attach(session_id)
        talker.ask(700)
        talker.create()
        for _ in range(2):
            if isinstance(refusal := talker.ask(), Refused):
                raise NotGranted(f"a prompt in good times: {refusal.message}")
        talker.page(session_id, view="entries", limit=200)
