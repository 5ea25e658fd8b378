"""A conversation Claude plans and GPT executes, taking turns: both of them think, call
tools, write into the notebook, and are shown what the other has said and done.

Claude's turns go to the role `planner`, GPT's by turns to `executor` (responses) and
`reviewer` (chat completions), and now and then a prompt names a model itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.support.raw_client import (
    PROMPT,
    SESSION_EVENT,
    TOOL_FINISHED,
    TURN_FINISHED,
    RawClient,
)
from tests.vendors import Answer, Call, Received, Text, Thinking, ToolCall

Json: TypeAlias = dict[str, Any]

CONTEXT_TOKENS: Final = 7_000
"""So small that new epochs begin on the way."""
_PLANNER: Final = "anthropic/claude-opus-5-5"
_OLDER_PLANNER: Final = "anthropic/claude-opus-4-5"
_EXECUTOR: Final = "openai/gpt-5.6"
_REVIEWER: Final = "compatible/gpt-5.6"
_WORDS: Final = "what was found so far, told at some length so that it takes its room. " * 4


def settings_of(*, openai_url: str, anthropic_url: str, key_file: Path) -> Json:
    def provider(**fields: object) -> Json:
        return {"api_key_file": str(key_file), **fields}

    models = (_PLANNER, _OLDER_PLANNER, _EXECUTOR, _REVIEWER)
    return {
        "providers": [
            provider(
                id="anthropic",
                type="anthropic",
                base_url=anthropic_url,
                models=["claude-opus-5-5", "claude-opus-4-5"],
            ),
            provider(
                id="openai", type="openai", api="responses", base_url=openai_url, models=["gpt-5.6"]
            ),
            provider(
                id="compatible", type="openai", api="chat", base_url=openai_url, models=["gpt-5.6"]
            ),
        ],
        "roles": {"planner": _PLANNER, "executor": _EXECUTOR, "reviewer": _REVIEWER},
        "models": {
            name: {"context_tokens": CONTEXT_TOKENS, "output_tokens": 2_048} for name in models
        },
    }


def script(call: Call) -> Answer:
    """Thinks, calls two tools, thinks again, and says what it found."""
    messages = call.body["input" if call.api == "responses" else "messages"]
    if _ends_with_results(messages):
        return Answer(
            parts=(Thinking("so that is it"), Text(f"call {call.number}: {_WORDS}")),
            piece_characters=200,
        )
    note = f'{{"action": "write", "text": "call {call.number}"}}'
    return Answer(
        parts=(
            Thinking("what do I need?"),
            Text("Let me see."),
            ToolCall("now", "{}"),
            ToolCall("notebook", note),
        ),
        piece_characters=40,
    )


def _ends_with_results(messages: Sequence[Json]) -> bool:
    last = messages[-1]
    if last.get("role") == "tool" or last.get("type") == "function_call_output":
        return True
    content = last.get("content")
    return isinstance(content, list) and any(b.get("type") == "tool_result" for b in content)


@dataclass(slots=True, kw_only=True)
class Talk:
    """What came of it."""

    turns: int = 0
    tools: int = 0
    epochs: int = 0
    complaints: list[str] = field(default_factory=list)


def alternate(port: int, *, turns: int) -> Talk:
    talk = Talk()
    with RawClient(port, timeout=60.0) as client:
        client.hello()
        for number in range(turns):
            asked = _prompt(number)
            turn_id = client.request(PROMPT, asked).json["turn_id"]
            _receive(client, turn_id, talk)
    return talk


def _prompt(number: int) -> Json:
    asked: Json = {"text": f"step {number}: go on", "options": {"effort": "high"}}
    if number % 8 == 6:
        return asked | {"model": _OLDER_PLANNER}
    roles = ("planner", "executor", "planner", "reviewer")
    return asked | {"role": roles[number % len(roles)]}


def _receive(client: RawClient, turn_id: str, talk: Talk) -> None:
    for frame in client.events():
        if frame.type == TOOL_FINISHED:
            talk.tools += 1
            if frame.json["status"] != "success":
                talk.complaints.append(f"a tool: {frame.json}")
        if frame.type == SESSION_EVENT and frame.json["event"] == "epoch":
            talk.epochs += 1
        if frame.type == TURN_FINISHED and frame.json["turn_id"] == turn_id:
            talk.turns += 1
            if frame.json["state"] != "completed":
                talk.complaints.append(f"turn {talk.turns}: {frame.json}")
            return


def voices_in(received: Sequence[Received]) -> set[tuple[str, str]]:
    """Which models were asked, and how they are spoken to."""
    bodies = [(each.api, each.body) for each in received]
    return {(str(api), body["model"]) for api, body in bodies if isinstance(body, dict)}


def cached_share(received: Sequence[Received], api: str) -> float:
    """How much of all that was sent to an API it found in its cache."""
    usages = [each.usage for each in received if each.api == api and each.usage is not None]
    sent = sum(usage.input_tokens for usage in usages)
    return sum(usage.read_tokens for usage in usages) / sent if sent else 0.0
