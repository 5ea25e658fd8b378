"""What a mind can be asked about itself: what a model would be shown, what it cost.

CONTEXT_REQUEST and USAGE, as values; nothing here changes a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_protocol.replies import ContextAccount, UsageAccount
from nplt_server.context.account import EntryAccount, account
from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.context.scene import Asked
from nplt_server.context.views import ContextView
from nplt_server.conversations.mind import Mind
from nplt_server.conversations.thinking import Thinking
from nplt_server.tokens.usage import (
    Estimate,
    Occupancy,
    UsageSeries,
    model_bills,
    occupancy_of,
)
from nplt_storage.conversation.views import model_name
from nplt_storage.facts.entries import ModelInputEntry, ModelOutputEntry

_ROLES: Final = {
    "system": "system",
    "model_input": "user",
    "model_output": "assistant",
    "tool_result": "tool",
}
_ROW_BYTES: Final = 512
"""Room for a row without what it says."""
_SAID_CHARACTERS_MIN: Final = 200


async def account_of_context(
    mind: Mind, thinking: Thinking, *, model: str, text: str | None, bytes_max: int
) -> ContextAccount:
    """As if that text were prompted now; without one, what a prompt would follow."""
    await thinking.counting.counter()
    asked: Asked = None
    if text is not None:
        asked = mind.state.draft_model_input(ModelInputEntry(content=text), waits=False)
    frame = mind.frame(model)
    epoch = mind.projection.due_epoch(asked, frame, screen=mind.state.screen())
    view = mind.view(asked, frame, epoch=epoch)
    rows = account(mind.projection.history, view, asked)
    shown = sum(row.level is not None for row in rows)
    left_out = sum(row.through_seq - row.seq + 1 for row in rows if row.level is None and row.seq)
    return ContextAccount(
        session_id=mind.ledger.session_id,
        model=model,
        epoch=mind.projection.history.epoch.seq if mind.projection.history.epoch else 0,
        budget_tokens=frame.budget_tokens or 0,
        entries=tuple(_rows(rows, view, bytes_max)),
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


def account_of_usage(mind: Mind, thinking: Thinking, *, model: str) -> UsageAccount:
    frame = mind.frame(model)
    epoch = mind.projection.due_epoch(None, frame, screen=mind.state.screen())
    next_tokens = mind.view(None, frame, epoch=epoch).tokens
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


def _occupancy(mind: Mind, thinking: Thinking, model: str) -> Occupancy:
    """Of the last call, whoever answered it."""
    entries = mind.projection.history.entries
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        if isinstance(entry, ModelOutputEntry) and entry.invocation is not None:
            answered_by = model_name(entry.invocation)
            return occupancy_of(
                entry.usage,
                counted=entry.sent.tokens if entry.sent is not None else 0,
                context_tokens=thinking.facts(answered_by).context_tokens,
            )
    window = thinking.facts(model).context_tokens
    return Occupancy(tokens=0, context_tokens=window, source="counted")


def _rows(rows: Sequence[EntryAccount], view: ContextView, bytes_max: int) -> Iterator[JsonObject]:
    """Everything that is said is shared out fairly if it would not fit one message."""
    messages = iter(view.messages)
    by_seq = {message.seq: message for message in messages if message.seq}
    system = next((one for one in view.messages if isinstance(one, SystemMessage)), None)
    room = max(0, bytes_max - _ROW_BYTES * len(rows))
    said_max = max(_SAID_CHARACTERS_MIN, room // 8 // max(1, len(view.messages)))
    fits = sum(_size(message) for message in view.messages) * 2 <= room
    for row in rows:
        out: JsonObject = {"seq": row.seq, "kind": row.kind, "tokens": row.tokens}
        if row.through_seq != row.seq:
            out["through_seq"] = row.through_seq
        if row.role is not None:
            out["role"] = _ROLES[row.role]
        if row.level is not None:
            out["detail"] = row.level
        if row.reason != "live":
            out["reason"] = row.reason
        message = system if row.reason == "system" else by_seq.get(row.seq)
        if row.level is not None and message is not None:
            out |= _said(message, None if fits else said_max)
        yield out


def _said(message: ContextMessage, characters_max: int | None) -> JsonObject:
    match message:
        case SystemMessage():
            return _cut("content", message.instruction, characters_max)
        case ModelInputMessage():
            return _cut("content", message.text, characters_max)
        case ModelOutputMessage():
            calls: list[JsonValue] = [
                {
                    "tool_name": call.tool_name,
                    "tool_call_id": call.tool_call_id,
                    **_cut("arguments", call.raw_arguments, characters_max),
                }
                for call in message.tool_calls
            ]
            said = _cut("content", message.content, characters_max)
            if calls:
                said["tool_calls"] = calls
            return said
        case ToolResultsMessage():
            results: list[JsonValue] = [
                {
                    "tool_name": result.tool_name,
                    "tool_call_id": result.tool_call_id,
                    "status": result.status,
                    **_cut("result", text, characters_max),
                }
                for result, text in zip(message.results, message.texts, strict=True)
            ]
            return {"results": results}


def _cut(name: str, text: str, characters_max: int | None) -> JsonObject:
    if characters_max is None or len(text) <= characters_max:
        return {name: text}
    return {name: text[:characters_max], "truncated": True, "size": len(text)}


def _size(message: ContextMessage) -> int:
    match message:
        case SystemMessage():
            return len(message.instruction.encode())
        case ModelInputMessage():
            return len(message.text.encode())
        case ModelOutputMessage():
            calls = sum(len(call.raw_arguments.encode()) + 200 for call in message.tool_calls)
            return len(message.content.encode()) + calls
        case ToolResultsMessage():
            return sum(len(text.encode()) + 200 for text in message.texts)
