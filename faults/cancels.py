"""P14: a cancel at any moment leaves every call with a result and every turn with one end.

Several clients prompt in each conversation of a real server and cancel at random moments. What they
received is compared with the history pages and the files; then the server is restarted and compared
again. Finally every conversation gets another prompt.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from faults.cancelling_clients import Canceller
from faults.clients import Finished, NotGranted, Talker
from faults.plan import Plan
from faults.progress import Progress
from faults.promises import Promises
from faults.results import Promised, Result
from faults.sabotage import take_out_results
from faults.serving import PATIENCE_SECONDS, ServerProgram, clean_environment
from faults.stored import Records, records_in_the_files, records_on_the_wire
from faults.whole_turns import ClientTurn, broken_turns, unended, unpaired

_ROOMS = 4
_CLIENTS_PER_ROOM = 3
_CAN_BE_MET = ("one that ran", "one that waited", "a tool", "one that was over")


@dataclass(slots=True, kw_only=True)
class _Outcome:
    turns: list[ClientTurn] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)
    in_time: int = 0

    def __str__(self) -> str:
        met = ", ".join(f"{self.met[name]:,} met {name}" for name in _CAN_BE_MET)
        count = self.met.total()
        return f"{count:,} cancels of {len(self.turns):,} turns, {self.in_time:,} in time ({met})"


def cancels(plan: Plan) -> list[Result]:
    with ServerProgram(plan.new_path("cancels") / "data") as server:
        server.start()
        outcome = _cancel_everywhere(plan, server.port, count=100 if plan.quick else 500)
        complaints = [*unended(outcome.turns), *_never_met(outcome), *_judge(server, outcome)]
        server.kill()
        if plan.sabotage:
            take_out_results(server.data_dir)
        server.start()
        complaints += _judge(server, outcome)
        results = _results_by_status(records_in_the_files(server.data_dir)[0])
        complaints += _is_in_order(server.data_dir)
        complaints += _go_on(server.port, {turn.session_id for turn in outcome.turns})
    promised = Promised(number="P14", what="cancels at any moment")
    return [promised.judged(list(dict.fromkeys(complaints)), f"{outcome}; results: {results}")]


def _cancel_everywhere(plan: Plan, port: int, *, count: int) -> _Outcome:
    with Talker(port, Promises()) as talker:
        rooms = [talker.create() for _ in range(_ROOMS)] * _CLIENTS_PER_ROOM
    progress = Progress("P14 cancels", count)

    def work(number: int) -> Canceller:
        share = -(-(count - number) // len(rooms))
        chance = plan.chance("cancels", number)
        with Canceller(port, chance, cancels=share, cancelled=progress.step) as client:
            client.work(rooms[number])
        return client

    outcome = _Outcome()
    with ThreadPoolExecutor(len(rooms)) as threads:
        for client in threads.map(work, range(len(rooms))):
            outcome.turns += client.turns
            outcome.met += client.met
            outcome.in_time += client.in_time
    progress.end()
    return outcome


def _never_met(outcome: _Outcome) -> Iterator[str]:
    for name in _CAN_BE_MET:
        if not outcome.met[name]:
            yield f"no cancel ever met {name}"


def _judge(server: ServerProgram, outcome: _Outcome) -> list[str]:
    on_the_wire, refused = records_on_the_wire(server.port)
    in_the_files, unreadable = records_in_the_files(server.data_dir)
    return [
        *refused,
        *unreadable,
        *(f"on the wire: {complaint}" for complaint in broken_turns(outcome.turns, on_the_wire)),
        *(f"in the files: {complaint}" for complaint in broken_turns(outcome.turns, in_the_files)),
    ]


def _is_in_order(data_dir: Path) -> list[str]:
    command = [sys.executable, "-m", "nplt_server", "doctor", str(data_dir), "--json"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode == 0:
        return []
    return [f"the doctor says: {json.loads(done.stdout) if done.stdout else done.stderr}"]


def _results_by_status(records: Records) -> str:
    count = Counter(
        str(result["status"])
        for entries in records.values()
        for entry in entries
        if entry["kind"] == "tool_results"
        for result in entry["tool_calls"]
    )
    return ", ".join(f"{count[status]:,} {status}" for status in sorted(count))


def _go_on(port: int, rooms: set[str]) -> Iterator[str]:
    with Talker(port, Promises()) as talker:
        for session_id in sorted(rooms):
            try:
                yield from (
                    f"{session_id}: {complaint}"
                    for complaint in unpaired(talker.context(session_id))
                )
                talker.attach(session_id)
                outcome = talker.ask()
            except NotGranted as refusal:
                yield f"{session_id} can't be gone on with: {refusal}"
                continue
            if not isinstance(outcome, Finished) or outcome.state != "completed":
                yield f"{session_id} can't be gone on with: {outcome}"
