"""B7: the newest page of 20, from a conversation that is not in memory.

Asked of the server over one connection, for a long and a short conversation
by turns. A file's first page after a start also applies the opening rule to
it, with its syncs; that is measured apart, at the file, without a server.
With `--full`: going on with a conversation of 1 GB, and pages of it, must not
grow the process. The index knows it by then: a file that nobody knew is
read whole, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.conversations import write_conversation
from benchmarks.measuring import alternate
from benchmarks.processes import Program, server
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict
from benchmarks.wire import ATTACH, HISTORY_REQUEST, Caller, wait_until_known
from nplt_storage.file_system import FileOperations
from nplt_storage.files.conversation_file import JsonFile
from nplt_storage.ids import new_entry_id
from nplt_storage.pages import PageQuery, read_page

SHORT, LONG = 100, 100_000
PAGES_PER_ROUND = 60
FIRST_PAGES_PER_ROUND = 15
HUGE_MESSAGES, HUGE_CONTENT_BYTES = 65_536, 16_000
MEBIBYTE = 1024 * 1024


def paging(plan: Plan) -> list[Verdict]:
    data_dir = plan.new_path("pages")
    paths = {
        name: write_conversation(data_dir, name, messages)
        for name, messages in (("long", plan.sized(LONG, smoke=1_000)), ("short", SHORT))
    }
    rounds = plan.rounds()
    # Before the server: the data directory must be nobody else's.
    firsts = {name: _first_pages(path, name) for name, path in paths.items()}
    first = alternate(firsts, rounds=rounds)
    with server(data_dir) as program, Caller(program.port) as caller:
        agains = {name: _pages_over_the_wire(caller, name) for name in paths}
        again = alternate(agains, rounds=rounds)
    verdicts = [
        Question(number="B7", what="newest page of 20 at 100,000 messages").at_most(
            1.25,
            again.ratio("long", "short"),
            unit="× at 100",
            details=again.summary("long", "short", unit="µs", per_unit=1e6),
        ),
        Question(number="B7", what="the same, first look after a start").at_most(
            1.25,
            first.ratio("long", "short"),
            unit="× at 100",
            details=first.summary("long", "short", unit="µs", per_unit=1e6),
        ),
    ]
    return [*verdicts, _huge(plan)]


def _pages_over_the_wire(caller: Caller, session_id: str) -> Callable[[], float]:
    def page() -> None:
        reply = caller.request(HISTORY_REQUEST, {"session_id": session_id})
        if len(reply["messages"]) != 20:
            raise ValueError("not a whole page")

    page()
    return lambda: _median_seconds(page, PAGES_PER_ROUND)


def _first_pages(path: Path, session_id: str) -> Callable[[], float]:
    def page() -> None:
        file = JsonFile(path, session_id, files=FileOperations(), new_id=new_entry_id)
        with file.reading() as entries:
            read_page(PageQuery(), entries)

    return lambda: _median_seconds(page, FIRST_PAGES_PER_ROUND)


def _median_seconds(work: Callable[[], None], times: int) -> float:
    figures: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        figures.append(time.perf_counter() - begun)
    return median(figures)


def _huge(plan: Plan) -> Verdict:
    question = Question(number="B7", what="a 1 GB conversation, attached and paged: growth of RSS")
    if not plan.full:
        return question.skipped("takes a minute and 1 GB of disk; ask for it with --full")
    empty_dir, huge_dir = plan.new_path("empty"), plan.new_path("huge")
    write_conversation(empty_dir, "huge", SHORT)
    path = write_conversation(huge_dir, "huge", HUGE_MESSAGES, content_bytes=HUGE_CONTENT_BYTES)
    with server(huge_dir) as program, Caller(program.port, patience=1_800) as caller:
        wait_until_known(caller)
    with server(empty_dir) as small, server(huge_dir) as large:
        growth = (_peak_after_pages(large) - _peak_after_pages(small)) / MEBIBYTE
    details = f"{path.stat().st_size / 1e9:.2f} GB"
    path.unlink()
    return question.at_most(64, growth, unit="MiB", details=details)


def _peak_after_pages(program: Program) -> int:
    with Caller(program.port) as caller:
        caller.request(ATTACH, {"session_id": "huge"})
        for where in ({}, {"before": 50}, {"around": 60}, {"after": 0}, {"limit": 200}):
            caller.request(HISTORY_REQUEST, {"session_id": "huge", **where})
    return program.peak_resident_bytes()
