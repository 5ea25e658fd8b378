"""P15: a vendor that fails gives every turn one end, a cut answer is never stored as a whole one,
and no vendor is sent what it would refuse.

There are three checks: a real server whose vendors fail in every way they can; one where Claude
plans and GPT executes for many turns; and thousands of short conversations in memory, with cancels
and crashes (`vendor_histories`).
"""

from __future__ import annotations

from pathlib import Path

from tests.support import alternating_vendors as alternating
from tests.support.failing_vendors import (
    APIS,
    CANARY,
    CASES,
    MORE_CASES,
    FailingScript,
    places_of_the_key,
    providers_of,
    try_all,
)
from tests.vendors import Answer, Call, Rejection, emulator_in_thread

from faults.plan import Plan
from faults.results import Promised, Result
from faults.serving import ServerProgram
from faults.vendor_histories import random_histories

_LIMITS = {"first_token_seconds_max": 5, "gap_seconds_max": 3, "turns_per_user_max": 64}


def vendors(plan: Plan) -> list[Result]:
    return [_failing(plan), _alternating(plan), random_histories(plan)]


def _failing(plan: Plan) -> Result:
    cases = CASES if plan.quick else MORE_CASES
    place = plan.new_path("vendors")
    key_file = _key_in(place)
    script = FailingScript(sabotaged=plan.sabotage)
    with emulator_in_thread(script, key=CANARY) as emulated:
        providers = providers_of(
            cases,
            openai_url=emulated.openai_url,
            anthropic_url=emulated.anthropic_url,
            key_file=key_file,
        )
        settings = {"providers": providers, "limits": _LIMITS, "log_level": "debug"}
        with ServerProgram(place / "data", settings=settings) as server:
            server.start()
            tried, complaints = try_all(server.port, cases, script)
    complaints += [
        f"the key is in {where}" for where in places_of_the_key(tried, place, but=key_file)
    ]
    complaints += [f"refused: {rejection!r}" for rejection in emulated.rejections]
    today = (
        f"{len(tried)} turns ({len(cases)} faults × {len(APIS)} APIs), "
        f"{sum(len(each.ends) for each in tried)} ends, "
        f"{sum(each.retries for each in tried)} retries told, the key seen nowhere"
    )
    return Promised(number="P15", what="vendors that fail").judged(complaints, today)


def _alternating(plan: Plan) -> Result:
    place = plan.new_path("alternating")
    refuses_from = 20 if plan.sabotage else None

    def script(call: Call) -> Answer:
        if refuses_from is not None and call.number >= refuses_from:
            raise Rejection("no reason at all")
        return alternating.script(call)

    with emulator_in_thread(script, key=CANARY) as emulated:
        settings = alternating.settings_of(
            openai_url=emulated.openai_url,
            anthropic_url=emulated.anthropic_url,
            key_file=_key_in(place),
        )
        with ServerProgram(place / "data", settings=settings) as server:
            server.start()
            talk = alternating.alternate(server.port, turns=24 if plan.quick else 200)
    complaints = talk.complaints + [f"refused: {rejection!r}" for rejection in emulated.rejections]
    if not talk.epochs:
        complaints.append("no epoch ever began")
    shares = ", ".join(
        f"{api} {alternating.cached_share(emulated.received, api):.0%}" for api in APIS
    )
    today = (
        f"{talk.turns} turns, {len(emulated.received)} calls, {talk.tools} tools, "
        f"{talk.epochs} epochs, {len(emulated.rejections)} refused; from caches: {shares}"
    )
    return Promised(number="P15", what="Claude plans, GPT executes").judged(complaints, today)


def _key_in(place: Path) -> Path:
    key_file = place / "key"
    key_file.write_text(CANARY)
    key_file.chmod(0o600)
    return key_file
