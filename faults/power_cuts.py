"""P2: what was acknowledged survives a power cut.

The control is part of the check: the same cuts under a server whose fsync and fdatasync only
pretend to sync. If nothing is lost then, the cuts cut nothing, and the check proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.fork_server import ForkServer

from faults.loop_disk import LoopDisk, check_loop_disks
from faults.plan import Plan
from faults.progress import Progress
from faults.promises import Promises
from faults.restarts import LIVES_PER_GENERATION, Deaths, Tally, live_and_die
from faults.results import Promised, Result
from faults.serving import ForkedServer, ServerProgram, clean_environment
from faults.tracing import Injection, check_strace, through_strace

_CONTROL_CUTS = 5
_PROMISED = Promised(number="P2", what="power cut")
_CONTROL = Promised(number="P2", what="power cut, fsync lying")

Servers = Callable[[Path], "ServerProgram | ForkedServer"]


def power_cuts(plan: Plan) -> list[Result]:
    check_loop_disks()
    check_strace()  # without the control the check proves nothing
    return [_with_true_syncs(plan), _with_lying_syncs(plan)]


def _with_true_syncs(plan: Plan) -> Result:
    count = 15 if plan.quick else 200
    tally, progress = Tally(), Progress("P2 cuts", count)
    with ForkServer(clean_environment()) as fork_server:
        while tally.deaths < count:
            cuts = min(LIVES_PER_GENERATION, count - tally.deaths)
            tally.add(_cut(plan, lambda path: ForkedServer(fork_server, path), cuts, progress))
    progress.end()
    return _PROMISED.judged(tally.complaints, f"{tally.deaths} cuts, {tally}")


def _with_lying_syncs(plan: Plan) -> Result:
    lie = Injection(calls=("fsync", "fdatasync"), effect="retval=0")
    log = plan.new_path("lies") / "trace"
    progress = Progress("P2 control", _CONTROL_CUTS)
    tally = _cut(
        plan,
        lambda path: ServerProgram(path, through=through_strace(lie, log)),
        _CONTROL_CUTS,
        progress,
    )
    progress.end()
    blind = [] if tally.complaints else ["nothing was lost without syncs: the cuts cut nothing"]
    return _CONTROL.judged(blind, f"{tally.deaths} cuts, {tally}, as it must be")


def _cut(plan: Plan, server_at: Servers, count: int, progress: Progress) -> Tally:
    directory = plan.new_path("cuts")
    with LoopDisk(directory) as disk:
        data_dir = disk.path / "data"
        with server_at(data_dir) as server:

            def strike(promises: Promises) -> None:
                # The server has power while the disk has none. A sync that is under
                # way meanwhile may be told by the kernel that it worked, and the
                # server believes it; after a real cut nobody would hear of it.
                promises.close()
                disk.cut()
                server.kill()
                disk.unmount()
                disk.mount()

            deaths = Deaths(count=count, strike=strike, dies_starting=False, sabotage=plan.sabotage)
            chance = plan.chance("cuts", directory.name)
            return live_and_die(server, deaths, chance, died=lambda now: progress.step(str(now)))
