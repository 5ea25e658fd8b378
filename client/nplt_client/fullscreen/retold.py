"""What is stored, as changes on the screen: messages of a history page, entries. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from nplt_client.fullscreen.changes import (
    ApprovalWanted,
    OfTurn,
    PromptShown,
    ReasoningStands,
    TextStands,
    ToolShown,
    TurnEnded,
)
from nplt_client.fullscreen.safe_text import safe, safe_json, safe_line
from nplt_protocol.json_values import JsonObject, JsonValue


def retold(messages: Iterable[JsonObject]) -> list[tuple[str, list[OfTurn]]]:
    """Turn by turn, in the order they were asked; each with the changes that show it.

    A prompt that had to wait stands before the answer it waited for. Messages without
    a turn (from imported conversations) stand for themselves.
    """
    turns: dict[str, list[OfTurn]] = {}
    calls: Counter[str] = Counter()
    for message in messages:
        turn_id = _word(message, "turn_id") or f"message-{message.get('seq')}"
        changes = turns.setdefault(turn_id, [])
        if message.get("role") == "user":
            changes.append(_prompt(message, turn_id))
        else:
            changes.extend(answer_changes(message, turn_id=turn_id, call=calls[turn_id]))
            calls[turn_id] += 1
    return list(turns.items())


def _prompt(message: JsonObject, turn_id: str) -> PromptShown:
    seq = message.get("seq")
    return PromptShown(
        turn_id=turn_id,
        text=safe(_word(message, "content")),
        seq=seq if isinstance(seq, int) else 0,
    )


def answer_changes(message: JsonObject, *, turn_id: str, call: int) -> Iterator[OfTurn]:
    if reasoning := _word(message, "reasoning"):
        yield ReasoningStands(turn_id=turn_id, call=call, text=safe(reasoning))
    text = safe(_word(message, "content"))
    if message.get("truncated"):
        text += f"\n\n*(cut here; {message.get('size')} characters in all: /export has them)*"
    yield TextStands(turn_id=turn_id, call=call, text=text)
    yield from tool_changes(message, turn_id=turn_id, call=call)
    match message.get("state"):
        case "interrupted" | "failed" as state:
            yield TurnEnded(turn_id=turn_id, state=state)
        case "completed" if not message.get("tool_calls"):
            yield TurnEnded(turn_id=turn_id, state="completed")
        case _:
            pass


def fault_changes(entry: JsonObject, *, turn_id: str) -> Iterator[OfTurn]:
    """The entry that says how a turn failed, or was cut short by the end of the server."""
    match entry.get("state"):
        case "interrupted" | "failed" as state:
            error = safe_line(_word(entry, "content")) if state == "failed" else None
            yield TurnEnded(turn_id=turn_id, state=state, error=error)
        case _:
            pass


def tool_changes(message: JsonObject, *, turn_id: str, call: int) -> Iterator[OfTurn]:
    calls = message.get("tool_calls")
    for tool in calls if isinstance(calls, list) else ():
        if not isinstance(tool, dict):
            continue
        seconds = tool.get("duration")
        pending = tool.get("status") == "pending"
        yield ToolShown(
            turn_id=turn_id,
            call=call,
            tool_call_id=_word(tool, "tool_call_id"),
            name=safe_line(_word(tool, "tool_name")),
            arguments=safe_json(tool["arguments"]) if tool.get("arguments") else None,
            status=safe_line(_word(tool, "status")),
            seconds=float(seconds) if isinstance(seconds, int | float) and not pending else None,
            result=safe(_word(tool, "result")),
        )


def tokens_of(usage: JsonObject) -> tuple[int, int]:
    sent, received = usage.get("input_tokens"), usage.get("output_tokens")
    return (
        sent if isinstance(sent, int) else 0,
        received if isinstance(received, int) else 0,
    )


def arguments_shown(arguments: JsonValue, size: JsonValue) -> str:
    """`size`: of arguments too long to be sent whole."""
    cut = f"\n… cut here: {size} in all" if isinstance(size, int) else ""
    return safe_json(arguments, indent=2) + cut


def approval_in(pending: JsonObject) -> ApprovalWanted:
    return ApprovalWanted(
        approval_id=_word(pending, "approval_id"),
        tool_name=safe_line(_word(pending, "tool_name")),
        arguments=arguments_shown(pending.get("arguments"), pending.get("size")),
        expires_at=safe_line(_word(pending, "expires_at")),
    )


def _word(row: JsonObject, name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""
