"""B8: ten thousand conversations: listing them, and starting with them.

The list's first page, asked of the server, against what a program without an index must
do: open and parse every file. In each round the page is asked for several times, as a
client does that shows a list, and the median counts; what the first one takes, when the
files have just filled the caches, is told beside it. The start against one with an empty
data directory; both have been started once before, so whatever the server keeps beside
the files is there. Files nobody knew are read while the server serves already: the list
is measured when that is done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median

import orjson

from benchmarks.conversations import FIRST_DAY, write_conversation
from benchmarks.measuring import Rounds, alternate, figure
from benchmarks.processes import listening, server, server_command
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict
from benchmarks.wire import SESSION_LIST, STATUS, Caller

CONVERSATIONS = 10_000
MESSAGES_EACH = 4
PAGE = 50
PAGES_PER_ROUND = 15
START_ROUNDS = 5


def listing(plan: Plan) -> list[Verdict]:
    full_dir, empty_dir = plan.new_path("many"), plan.new_path("none")
    conversations = plan.sized(CONVERSATIONS, smoke=PAGE + 10)
    for number in range(conversations):
        at = FIRST_DAY + timedelta(minutes=number)
        write_conversation(full_dir, f"c{number:05}", MESSAGES_EACH, at=at)
    with server(full_dir) as program, Caller(program.port) as caller:
        while caller.request(STATUS)["conversations"]["stored"] < conversations:
            time.sleep(0.2)
        firsts: list[float] = []

        def pages() -> float:
            found = [_list_over_the_wire(caller, conversations) for _ in range(PAGES_PER_ROUND)]
            firsts.append(found[0])
            return median(found)

        lists = alternate(
            {
                "list": pages,
                "files": lambda: _open_all(full_dir),
            },
            rounds=plan.rounds(),
        )
    starts = _starts(full_dir, empty_dir, rounds=plan.rounds(START_ROUNDS))
    return [
        Question(number="B8", what="first 50 of 10,000 conversations").at_least(
            100,
            lists.ratio("files", "list"),
            unit="× faster than the files",
            details=lists.summary("list", "files", unit="ms", per_unit=1e3)
            + f"; the first list of a round {figure(median(firsts) * 1e3)} ms",
        ),
        Question(number="B8", what="start with 10,000 conversations").at_most(
            3,
            starts.ratio("many", "none"),
            unit="× start with none",
            details=starts.summary("many", "none", unit="s"),
        ),
    ]


def _list_over_the_wire(caller: Caller, conversations: int) -> float:
    begun = time.perf_counter()
    rows = caller.request(SESSION_LIST, {"limit": PAGE})["sessions"]
    seconds = time.perf_counter() - begun
    newest = [f"c{conversations - 1 - place:05}" for place in range(PAGE)]
    if [row["session_id"] for row in rows] != newest:
        raise ValueError("not the newest conversations")
    return seconds


def _open_all(data_dir: Path) -> float:
    """The rows as the files themselves have them; as quick as a plain reader gets."""
    begun = time.perf_counter()
    rows = []
    for path in (data_dir / "history").glob("session_*.json"):
        source = orjson.loads(path.read_bytes())
        messages = source["messages"]
        row = (source["updated_at"], source["session_id"], len(messages))
        rows.append((*row, messages[0]["content"][:40], messages[-1]["content"][:80]))
    rows.sort(reverse=True)
    json.dumps(rows[:PAGE])
    return time.perf_counter() - begun


def _starts(full_dir: Path, empty_dir: Path, *, rounds: int) -> Rounds:
    def start(data_dir: Path) -> Callable[[], float]:
        def measure() -> float:
            with listening(server_command(data_dir)) as program:
                return program.seconds_to_listen

        return measure

    many, none = start(full_dir), start(empty_dir)
    none()  # the other has been started before, to be listed
    return alternate({"many": many, "none": none}, rounds=rounds)
