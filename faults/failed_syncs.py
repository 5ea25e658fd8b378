"""P5: syncs fail. Such a write is never acknowledged and never retried blindly; the conversation is
read-only until it is reopened, and the others go on.

strace fails the syncs of one file only. From the k-th on they all fail, so that the failure hits a
prompt, an answer and the repair in turn. Then strace detaches, and the conversation must go on by
itself.
"""

from __future__ import annotations

from faults.clients import Finished, Refused, Talker
from faults.plan import Plan
from faults.progress import Progress
from faults.promises import Promises
from faults.results import Promised, Result
from faults.sabotage import take_out_a_line
from faults.serving import ServerProgram
from faults.stored import conversation_files, judge
from faults.tracing import Attached, Injection, check_strace, injected

_SYNCS = ("fdatasync", "fsync")
_CLEAR_CODES = ("unavailable", "read_only")
_PROMISED = Promised(number="P5", what="the disk does not confirm")


def failed_syncs(plan: Plan) -> list[Result]:
    check_strace()
    places = range(1, 5) if plan.quick else range(1, 13)
    complaints: list[str] = []
    promises = failures = 0
    progress = Progress("P5 failed syncs", len(places))
    for k in places:
        given = Promises()
        complaint, failed = _fail_from(plan, k, given)
        complaints += [f"from sync {k} on: {one}" for one in complaint]
        promises += len(given)
        failures += failed
        progress.step()
    progress.end()
    today = f"{failures} syncs failed at {len(places)} places, {promises} promises"
    return [_PROMISED.judged(complaints, today)]


def _fail_from(plan: Plan, k: int, promises: Promises) -> tuple[list[str], int]:
    data_dir = plan.new_path("syncs") / "data"
    trace = data_dir.with_name("trace")
    complaints: list[str] = []
    with ServerProgram(data_dir) as server:
        server.start()
        with Talker(server.port, promises) as unlucky, Talker(server.port, promises) as lucky:
            room = unlucky.create()
            (path,) = conversation_files(data_dir)
            lucky.create()
            for talker in (unlucky, lucky):
                talker.ask()
            failing = Injection(calls=_SYNCS, effect="error=EIO", when=f"{k}+", path=path)
            with Attached(server.pid, failing, trace):
                complaints += _while_failing(unlucky, lucky, room, k)
            if not _is_completed(unlucky.ask()):
                complaints.append("the conversation did not go on when the disk was well again")
    failed = injected(trace)
    if not failed:
        complaints.append("no sync failed: nothing was tried")
    if plan.sabotage:
        take_out_a_line(data_dir, promises.acked())
    with ServerProgram(data_dir) as server:
        server.start()
        complaints += judge(server.port, data_dir, promises.acked())
    return complaints, failed


def _while_failing(unlucky: Talker, lucky: Talker, room: str, k: int) -> list[str]:
    complaints: list[str] = []
    # A turn syncs twice, so after k prompts the k-th sync has passed.
    outcome = [unlucky.ask() for _ in range(k)]
    for one in outcome:
        if isinstance(one, Refused) and one.code not in _CLEAR_CODES:
            complaints.append(f"not a clear error: {one.code}: {one.message}")
    if _is_completed(unlucky.ask()):
        complaints.append("a turn completed although no sync works")
    if not _is_completed(lucky.ask()):
        complaints.append("another conversation did not go on")
    if not unlucky.page(room, view="entries", limit=5)["messages"]:
        complaints.append("the conversation can't be read meanwhile")
    return complaints


def _is_completed(outcome: Finished | Refused) -> bool:
    return isinstance(outcome, Finished) and outcome.state == "completed"
