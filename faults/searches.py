"""SEARCH: heavy searches delay no one, and no damage to the catalogue stops the server.

Clients search conversations for words that all of them contain, again and again, while another
client lists, reads and prompts. Then the catalogue and the files beside it are cut, overwritten and
locked under the running server, which must go on, and must know everything again after a restart.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.raw_client import (
    ERROR,
    HISTORY_REQUEST,
    SEARCH,
    SESSION_LIST,
    Closed,
    RawClient,
)

from faults.clients import Talker
from faults.plan import Plan
from faults.progress import Progress
from faults.promises import Promises
from faults.results import Promised, Result
from faults.sabotage import take_out_a_line
from faults.serving import PATIENCE_SECONDS, ServerProgram
from faults.stored import judge, wait_for_lists

_WORDS = " ".join(f"w{number}" for number in range(60))
_SEARCHERS = 6
_WAIT_SECONDS_MAX = 2.0
"""The limit for a list while others search; a search ends after five seconds."""
_HARMS = ("cut the catalogue", "cut the journal", "overwrite it", "lock it", "remove it")


@dataclass(slots=True)
class Searches:
    done: int = 0
    given_up: int = 0
    slowest: float = 0.0
    """The seconds that a list, a page of a history or a prompt took meanwhile."""
    complaints: list[str] = field(default_factory=list)


def searches(plan: Plan) -> list[Result]:
    with ServerProgram(plan.new_path("search") / "data") as server:
        promises, search_load = Promises(), Searches()
        server.start()
        _fill(server.port, promises, prompts=40 if plan.quick else 400)
        _search_meanwhile(server.port, promises, search_load, rounds=10 if plan.quick else 100)
        harmed = _harm(plan, server, promises)
    held_up = Promised(number="SEARCH", what="heavy searches beside lists, pages and prompts")
    survives = Promised(number="SEARCH", what="a catalogue that is cut, overwritten and locked")
    slowest = f"slowest other request {search_load.slowest * 1000:.0f} ms"
    return [
        held_up.judged(search_load.complaints, f"{search_load.done} searches, {slowest}"),
        survives.judged(harmed, f"{len(_HARMS)} kinds of harm, {len(promises):,} promises"),
    ]


def _fill(port: int, promises: Promises, *, prompts: int) -> None:
    progress = Progress("SEARCH prompts", prompts)
    with Talker(port, promises) as talker, RawClient(port, timeout=PATIENCE_SECONDS) as other:
        talker.create()
        talker.ask()
        other.hello()
        for number in range(prompts):
            other.ask(f"{number} {_WORDS} " * 20)
            progress.step()
    progress.end()


def _search_meanwhile(port: int, promises: Promises, search_load: Searches, *, rounds: int) -> None:
    is_over = threading.Event()
    threads = [
        threading.Thread(target=_keep_searching, args=(port, is_over, search_load))
        for _ in range(_SEARCHERS)
    ]
    for thread in threads:
        thread.start()
    try:
        with Talker(port, promises) as talker, RawClient(port, timeout=PATIENCE_SECONDS) as client:
            session_id = talker.create()
            client.hello()
            for _ in range(rounds):
                for type_, asked in (
                    (SESSION_LIST, {"limit": 10}),
                    (HISTORY_REQUEST, {"session_id": session_id}),
                ):
                    begun = time.monotonic()
                    if client.request(type_, asked).type == ERROR:
                        search_load.complaints.append(f"request {type_:#x} was refused")
                    search_load.slowest = max(search_load.slowest, time.monotonic() - begun)
                begun = time.monotonic()
                talker.ask()
                search_load.slowest = max(search_load.slowest, time.monotonic() - begun)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    if search_load.slowest > _WAIT_SECONDS_MAX:
        search_load.complaints.append(
            f"somebody waited {search_load.slowest:.1f} s beside searches"
        )
    if not search_load.done:
        search_load.complaints.append("no search was answered: nothing was tried")


def _keep_searching(port: int, is_over: threading.Event, search_load: Searches) -> None:
    with (
        suppress(Closed, OSError),
        RawClient(port, timeout=PATIENCE_SECONDS) as client,
    ):
        client.hello()
        while not is_over.is_set():
            client.request(SEARCH, {"query": f"{_WORDS} w", "limit": 100})
            search_load.done += 1


def _harm(plan: Plan, server: ServerProgram, promises: Promises) -> list[str]:
    """Damages the catalogue. The server answers after each damage; in the end it is restarted and
    compared."""
    complaints: list[str] = []
    path = server.data_dir / "catalog.sqlite"
    for harm in _HARMS:
        _do_harm(harm, path)
        try:
            with Talker(server.port, promises) as talker, RawClient(server.port) as client:
                client.hello()
                client.request(SEARCH, {"query": _WORDS})
                talker.rows()
                talker.create()
                talker.ask()
        except (Closed, OSError, TimeoutError) as error:
            complaints.append(f"{harm}: the server does not answer ({error!r})")
            server.kill()
            server.start()
    server.kill()
    if plan.sabotage:
        take_out_a_line(server.data_dir, promises.acked())
    server.start()
    acked = promises.acked()
    wait_for_lists(server.port, acked)
    # What the clients that filled it received is not noted: only what is lost counts.
    lost = judge(server.port, server.data_dir, acked)
    return complaints + [complaint for complaint in lost if "never sent" not in complaint]


def _do_harm(harm: str, path: Path) -> None:
    journal = path.with_name(f"{path.name}-wal")
    shared = path.with_name(f"{path.name}-shm")
    match harm:
        case "cut the catalogue":
            os.truncate(path, 4096)
        case "cut the journal":
            for each in (journal, shared):
                if each.exists():
                    os.truncate(each, 0)
        case "overwrite it":
            with path.open("r+b") as file:
                file.write(os.urandom(8192))
        case "lock it":
            other = sqlite3.connect(path, timeout=0, isolation_level=None)
            with closing(other), suppress(sqlite3.Error):
                other.execute("BEGIN EXCLUSIVE")
        case _:
            path.unlink(missing_ok=True)
