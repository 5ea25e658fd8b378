"""ASK: an approval is decided once, whoever decides, and whenever the server dies.

First three clients race to decide each of a thousand approvals. There is one decision each; all
clients receive it in the same order, and the reply to each request contains it. Then the server is
killed while an approval is open, or at the moment it is decided. Afterwards it is open under the
same id, or it is decided; a tool that may have run does not run again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tests.support.raw_client import TURN_FINISHED

from faults.clients import Talker
from faults.deciders import APPROVAL_REQUEST, Decider
from faults.plan import Plan
from faults.progress import Progress
from faults.promises import Promises
from faults.results import Promised, Result
from faults.sabotage import take_out_results
from faults.serving import ServerProgram
from faults.stored import records_in_the_files

_PEOPLE = 3
_DECISION_SECONDS_MAX = 0.02
_SETTINGS = {
    "providers": [{"id": "offline", "type": "offline", "words_per_second": 0}],
    "log_level": "error",
    "tools": {"now": "ask"},
}
_CAN_BE_MET = ("a question that waited", "one that was decided")


@dataclass(slots=True, kw_only=True)
class _Seen:
    complaints: list[str] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)
    """The state of the approval at each kill, by what the restarted server had."""


def approvals(plan: Plan) -> list[Result]:
    races, kills = (200, 10) if plan.quick else (1_000, 60)
    seen = _Seen()
    with ServerProgram(plan.new_path("approvals") / "data", settings=_SETTINGS) as server:
        server.start()
        with Talker(server.port, Promises()) as talker:
            session_id = talker.create()
            session_of_kills = talker.create()
        seen.complaints += _race(plan, server.port, session_id, count=races)
        progress = Progress("ASK kills", kills)
        for number in range(kills):
            _kill(plan, server, session_of_kills, seen, number=number)
            progress.step()
        progress.end()
        server.kill()
        if plan.sabotage:
            take_out_results(server.data_dir)
        records, unreadable = records_in_the_files(server.data_dir)
        seen.complaints += unreadable
        for entries in records.values():
            seen.complaints += _broken_record(entries)
        decided = sum(map(len, map(_decisions, records.values())))
    seen.complaints += [f"no kill ever met {one}" for one in _CAN_BE_MET if not seen.met[one]]
    met = ", ".join(f"{seen.met[name]} met {name}" for name in _CAN_BE_MET)
    today = f"{races:,} races, {kills} kills ({met}), {decided:,} decisions in the record"
    promised = Promised(number="ASK", what="questions are decided once")
    return [promised.judged(list(dict.fromkeys(seen.complaints)), today)]


# Races


def _race(plan: Plan, port: int, session_id: str, *, count: int) -> Iterator[str]:
    people = [
        Decider(port, plan.chance("approvals", place), prompts=place == 0)
        for place in range(_PEOPLE)
    ]
    for person in people:
        person.attach(session_id)
    progress = Progress("ASK races", count * _PEOPLE)
    with ThreadPoolExecutor(_PEOPLE) as threads:
        list(threads.map(lambda person: person.race(count, finished=progress.step), people))
    progress.end()
    yield from _unlike(people, count)
    for person in people:
        person.close()


def _unlike(people: list[Decider], count: int) -> Iterator[str]:
    first = people[0].received
    if len(first.decided) != count:
        yield f"{len(first.decided)} of {count} questions were decided"
    for place, person in enumerate(people):
        received = person.received
        yield from (f"client {place} heard two decisions of {one}" for one in received.twice)
        if received.events != first.events:
            yield f"client {place} heard something else, or in another order, than client 0"
        for approval_id, decision in received.decisions:
            if first.decided.get(approval_id) != decision:
                yield f"client {place} was told {decision} of {approval_id}; all heard otherwise"


# Kills


def _kill(plan: Plan, server: ServerProgram, session_id: str, seen: _Seen, *, number: int) -> None:
    """Kills the server while the approval is open, or a moment after it was decided."""
    chance = plan.chance("approvals", "kills", number)
    person = Decider(server.port, chance)
    person.attach(session_id)
    person.prompt()
    question = person.wait_for(APPROVAL_REQUEST)
    if chance.random() < 0.6:
        person.decide(question["approval_id"])
        time.sleep(chance.uniform(0, _DECISION_SECONDS_MAX))
    server.kill()
    person.read_out()
    received = dict(person.received.decisions) | person.received.decided
    person.close()
    server.start()
    person = Decider(server.port, chance)
    attached = person.attach(session_id)
    if attached["pending_approvals"]:
        seen.met["a question that waited"] += 1
        seen.complaints += _decide_late(person, question, attached, received)
    else:
        seen.met["one that was decided"] += 1
    person.close()


def _decide_late(
    person: Decider, question: dict[str, Any], attached: dict[str, Any], received: dict[str, str]
) -> Iterator[str]:
    if attached["pending_approvals"] != [question]:
        yield f"another question waits after the restart: {attached['pending_approvals']}"
    if question["approval_id"] in received:
        yield f"{question['approval_id']} was decided, and is open again"
    person.decide(question["approval_id"])
    finished = person.wait_for(TURN_FINISHED)
    if (finished["turn_id"], finished["state"]) != (question["turn_id"], "completed"):
        yield f"a turn that went on after a restart ended so: {finished}"


# The record


def _decisions(entries: list[dict[str, Any]]) -> dict[str, str]:
    facts = [entry for entry in entries if entry["kind"] == "approval"]
    return {fact["tool_call_id"]: fact["state"] for fact in facts if fact["state"] != "asked"}


def _broken_record(entries: list[dict[str, Any]]) -> Iterator[str]:
    counted = Counter(
        (entry["approval_id"], entry["state"] == "asked")
        for entry in entries
        if entry["kind"] == "approval"
    )
    yield from (
        f"{approval_id} is {count} times in the record"
        for (approval_id, _), count in counted.items()
        if count > 1
    )
    decided = _decisions(entries)
    results = {
        result["tool_call_id"]: result
        for entry in entries
        if entry["kind"] == "tool_results"
        for result in entry["tool_calls"]
    }
    for call_id, state in decided.items():
        result = results.get(call_id)
        if result is None:
            yield f"call {call_id} was {state} and has no result"
        elif not _fits(state, result):
            yield f"call {call_id} was {state} and has the result {result['result']!r}"
    for call_id in results.keys() - decided.keys():
        yield f"call {call_id} has a result, and nobody decided"


def _fits(state: str, result: dict[str, Any]) -> bool:
    if state == "denied":
        return bool(result["status"] == "skipped")
    is_unknown = result["status"] == "failed" and result["result"].startswith("outcome unknown: ")
    return is_unknown or bool(result["status"] == "success")
