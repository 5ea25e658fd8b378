"""What a turn works with, laid out before it begins: the conversation's mind, the
models that may answer, the tools, and where everything is written and said.
"""

from __future__ import annotations

from functools import partial

from nplt_server import debug
from nplt_server.context.views import ContextView
from nplt_server.conversations.approvals import TurnAsker
from nplt_server.conversations.household import Household
from nplt_server.conversations.mind import Mind
from nplt_server.conversations.tool_host import TurnToolHost
from nplt_server.conversations.turn import CallingRules, Respondent, Turn, TurnDesk, WriteEntry
from nplt_server.conversations.voice import Voice
from nplt_server.deltas import UsageReport


def lay_desk(
    turn: Turn,
    *,
    mind: Mind,
    host: TurnToolHost,
    asker: TurnAsker,
    voice: Voice,
    write: WriteEntry,
) -> TurnDesk:
    household = mind.household
    router = household.router
    return TurnDesk(
        state=mind.state,
        respondent=lambda model: respondent(model, turn.turn_id, mind=mind, household=household),
        rules=CallingRules(
            retries=router.retries,
            instead_of=lambda tried, provider: router.instead_of(tried, avoid=provider),
            quarantine=mind.quarantine,
            forget_thoughts=mind.forget_thoughts,
        ),
        tools=household.tools,
        host=host,
        asker=asker,
        sit_down=asker.sit_down,
        voice=voice,
        limits=household.turn_limits,
        new_call_id=household.new_entry_id,
        write=write,
        keep_blob=mind.ledger.keep_blob,
    )


def respondent(model: str, turn_id: str, *, mind: Mind, household: Household) -> Respondent:
    thinking = household.thinking
    line, invocation = household.router.route(model)

    def billed(shown: ContextView, usage: UsageReport) -> None:
        thinking.learn(model, counted=shown.tokens, real=usage.input_tokens)
        debug.tokens("billed", model=model, counted=shown.tokens, **usage.as_json())

    return Respondent(
        model=model,
        provider=line,
        invocation=invocation,
        metrics=line.metrics,
        answer_tokens_max=mind.answer_tokens_max(model),
        prepare=partial(mind.prepare, turn_id, model),
        billed=billed,
        has_window=partial(thinking.learn_window, model),
        takes_no_more=partial(mind.remember_ceiling, model),
    )
