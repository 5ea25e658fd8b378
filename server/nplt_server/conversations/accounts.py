"""What a mind can be asked about itself: what a model would be shown, what it cost.

CONTEXT_REQUEST and USAGE, as values; nothing here changes a record.
"""

from __future__ import annotations

from dataclasses import replace

from nplt_protocol.replies import ContextAccount, UsageAccount
from nplt_protocol.shapes import write
from nplt_server.context.account import account
from nplt_server.context.fitting import ContextTooSmall
from nplt_server.context.projection import Projection
from nplt_server.context.scene import Asked
from nplt_server.context.views import CallFrame, ContextView
from nplt_server.conversations.account_rows import rows_within, written_size
from nplt_server.conversations.mind import Mind
from nplt_server.conversations.thinking import Thinking
from nplt_server.errors import WindowTooSmall
from nplt_server.tokens.usage import (
    Estimate,
    Occupancy,
    UsageSeries,
    model_bills,
    occupancy_of,
)
from nplt_storage.conversation.views import model_name
from nplt_storage.facts.entries import EpochEntry, FaultEntry, ModelInputEntry, ModelOutputEntry


async def account_of_context(
    mind: Mind, thinking: Thinking, *, model: str, text: str | None, bytes_max: int
) -> ContextAccount:
    """As if that text were prompted now; without one, what a prompt would follow."""
    await mind.ready()
    asked: Asked = None
    if text is not None:
        asked = mind.state.draft_model_input(ModelInputEntry(content=text), waits=False)
    frame = mind.frame(model)
    projection = _projection(mind, thinking)
    epoch = projection.due_epoch(asked, frame, screen=mind.state.screen())
    view = _view(projection, asked, frame, epoch=epoch)
    rows = account(projection.history, view, asked)
    shown = sum(row.level is not None for row in rows)
    left_out = sum(row.through_seq - row.seq + 1 for row in rows if row.level is None and row.seq)
    given = ContextAccount(
        session_id=mind.ledger.session_id,
        model=model,
        epoch=projection.history.epoch.seq if projection.history.epoch else 0,
        budget_tokens=frame.budget_tokens or 0,
        entries=(),
        totals={
            "tokens": view.tokens,
            "tools": frame.tools_tokens,
            "shown": shown,
            "left_out": left_out,
            "counter": thinking.counting.now.name,
            "trimmed": view.is_trimmed,
        },
        begins_epoch=epoch.reason if epoch is not None else None,
    )
    room = bytes_max - written_size(write(given))
    return replace(given, entries=rows_within(rows, view, bytes_max=room))


def account_of_usage(mind: Mind, thinking: Thinking, *, model: str) -> UsageAccount:
    frame = mind.frame(model)
    projection = _projection(mind, thinking)
    try:
        epoch = projection.due_epoch(None, frame, screen=mind.state.screen())
        next_tokens = projection.context(None, frame, epoch=epoch).tokens
    except ContextTooSmall as error:
        next_tokens = error.needed  # what was billed is told whatever fits
    row = mind.ledger.row
    prices = {name: facts.prices for name, facts in thinking.models.items() if facts.prices}
    counting = thinking.counting
    usage = UsageSeries(
        billed=model_bills(row.billed if row is not None else (), prices),
        occupancy=_occupancy(mind, thinking, model),
        estimate=Estimate(
            tokens=counting.correction.corrected(model, next_tokens), counter=counting.now.name
        ),
    )
    series = {name: said for name, said in usage.as_json().items() if isinstance(said, dict)}
    return UsageAccount(session_id=mind.ledger.session_id, model=model, **series)


def _projection(mind: Mind, thinking: Thinking) -> Projection:
    """Of the record as the next line will find it."""
    known = mind.projection
    history = mind.ledger.expected_history()
    if history is known.history:
        return known
    return Projection(history, known.measure, policy=thinking.rules.policy)


def _view(
    projection: Projection, asked: Asked, frame: CallFrame, *, epoch: EpochEntry | None
) -> ContextView:
    try:
        return projection.context(asked, frame, epoch=epoch)
    except ContextTooSmall as error:
        raise WindowTooSmall(str(error)) from None


def _occupancy(mind: Mind, thinking: Thinking, model: str) -> Occupancy:
    """Of the last call, whoever was called."""
    entries = mind.projection.history.entries
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        if isinstance(entry, ModelOutputEntry | FaultEntry) and entry.invocation is not None:
            called = model_name(entry.invocation)
            sent = entry.sent if isinstance(entry, ModelOutputEntry) else None
            return occupancy_of(
                entry.usage,
                counted=sent.tokens if sent is not None else 0,
                context_tokens=thinking.facts(called).context_tokens,
            )
    window = thinking.facts(model).context_tokens
    return Occupancy(tokens=0, context_tokens=window, source="counted")
