"""What a turn works with, laid out before it begins: the conversation's mind, the
model that answers, the tools, and where everything is written and said.
"""

from __future__ import annotations

from functools import partial

from nplt_server import debug
from nplt_server.context.views import ContextView
from nplt_server.conversations.household import Household
from nplt_server.conversations.mind import Mind
from nplt_server.conversations.tool_host import TurnToolHost
from nplt_server.conversations.turn import Turn, TurnDesk, WriteEntry
from nplt_server.conversations.voice import Voice
from nplt_server.deltas import UsageReport


def lay_desk(
    turn: Turn,
    *,
    mind: Mind,
    household: Household,
    host: TurnToolHost,
    voice: Voice,
    write: WriteEntry,
) -> TurnDesk:
    thinking = household.thinking
    provider, invocation = household.router.route(turn.model)

    def billed(shown: ContextView, usage: UsageReport) -> None:
        thinking.learn(turn.model, counted=shown.tokens, real=usage.input_tokens)
        debug.tokens("billed", model=turn.model, counted=shown.tokens, **usage.as_json())

    return TurnDesk(
        state=mind.state,
        provider=provider,
        invocation=invocation,
        tools=household.tools,
        host=host,
        voice=voice,
        limits=household.turn_limits,
        answer_tokens_max=thinking.facts(turn.model).answer_tokens,
        new_call_id=household.new_entry_id,
        prepare=partial(mind.prepare, turn.turn_id, turn.model),
        billed=billed,
        write=write,
        keep_blob=mind.ledger.keep_blob,
    )
