"""Thinking in Anthropic's Messages API: what may be asked for, and what may come back.

Documented ("Preserved thinking"): a thinking block goes back unmodified, and the system
prompt, the tools and every message before it are those it was made with; cache marks
don't count. Documented as well: a block the asked model can't read is dropped without a
word, and models before Claude Fable 5.1 don't check the prefix. Here every model checks
it, and a block of another model is refused: who passes here passes there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from tests.vendors.anthropic_rules import ANTHROPIC
from tests.vendors.fields import (
    JsonObject,
    Shape,
    check_choice,
    check_range,
    check_shape,
)
from tests.vendors.messages_shapes import SAY, blocks_of
from tests.vendors.models import ClaudeModel
from tests.vendors.seals import Seals, digest
from tests.vendors.tokens import canonical

BUDGET_TOKENS_MIN = 1024
THINKING_BLOCKS = ("thinking", "redacted_thinking")
_SHAPES = {
    "enabled": Shape(
        required={"type": "string", "budget_tokens": "integer"},
        optional={"display": "string|null"},
    ),
    "adaptive": Shape(required={"type": "string"}, optional={"display": "string|null"}),
    "disabled": Shape(required={"type": "string"}),
}


class Conversation:
    """What a block is bound to: all that was rendered before it, block by block."""

    def __init__(self, body: JsonObject) -> None:
        self._model = body["model"]
        self._system = digest(canonical(blocks_of(body.get("system", ""))))
        self._tools = digest(canonical(body.get("tools", [])))
        self._before = hashlib.sha256()

    def add(self, role: str, block: JsonObject) -> None:
        self._before.update(f"{role} {canonical(block)}\n".encode())

    def binding(self, text: str) -> dict[str, str]:
        return {
            "model": self._model,
            "text": digest(text),
            "system": self._system,
            "tools": self._tools,
            "messages": self._before.hexdigest()[:32],
        }


def conversation_of(body: JsonObject) -> Conversation:
    conversation = Conversation(body)
    for message in body["messages"]:
        for block in blocks_of(message["content"]):
            conversation.add(message["role"], block)
    return conversation


def check_thinking_asked(body: JsonObject, model: ClaudeModel) -> None:
    asked = body.get("thinking")
    if asked is None:
        return
    kind = asked.get("type", "")
    check_choice(kind, ("thinking", "type"), tuple(_SHAPES), SAY)
    if kind == "disabled":
        if not model.can_leave_thinking:
            raise ANTHROPIC["anthropic-must-think"].refusal()
        return
    if kind == "enabled" and kind not in model.thinking_kinds:
        raise ANTHROPIC["anthropic-no-budget"].refusal()
    if kind not in model.thinking_kinds:
        raise ANTHROPIC["anthropic-no-adaptive"].refusal()
    check_shape(asked, ("thinking", kind), _SHAPES[kind], SAY)
    if body.get("temperature", 1) != 1:
        raise ANTHROPIC["anthropic-thinking-temperature"].refusal()
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        raise ANTHROPIC["anthropic-thinking-forced"].refusal()
    if kind == "enabled":
        budget = asked["budget_tokens"]
        check_range(budget, ("thinking", kind, "budget_tokens"), SAY, least=BUDGET_TOKENS_MIN)
        if budget >= body.get("max_tokens", budget + 1):
            raise ANTHROPIC["anthropic-budget"].refusal()


def check_thinking_sent(body: JsonObject, seals: Seals) -> None:
    messages = body["messages"]
    if body.get("thinking", {}).get("type") == "enabled":
        _check_turn_begins_with_thinking(messages)
    conversation = Conversation(body)
    latest = max(
        (place for place, each in enumerate(messages) if each["role"] == "assistant"), default=0
    )
    for place, message in enumerate(messages):
        blocks = blocks_of(message["content"])
        if blocks and blocks[-1]["type"] in THINKING_BLOCKS:
            kind = blocks[-1]["type"]
            raise ANTHROPIC["anthropic-ends-with-thinking"].at(("messages", place), kind=kind)
        for number, block in enumerate(blocks):
            if block["type"] in THINKING_BLOCKS:
                fault = _fault(block, conversation, seals, latest=place == latest)
                if fault is not None:
                    rule, words = fault
                    raise ANTHROPIC[rule].at(("messages", place, "content", number), **words)
            conversation.add(message["role"], block)


def _fault(
    block: JsonObject, conversation: Conversation, seals: Seals, *, latest: bool
) -> tuple[str, dict[str, str]] | None:
    """The broken rule and the words it needs."""
    redacted = block["type"] == "redacted_thinking"
    sealed = seals.contents(block["data"] if redacted else block["signature"])
    words = {"field": "data" if redacted else "signature", "type": block["type"]}
    if sealed is None:
        return "anthropic-signature", words
    bound = conversation.binding("" if redacted else block["thinking"])
    if sealed["model"] != bound["model"]:
        return "anthropic-signature", words
    if sealed["text"] != bound["text"]:
        return ("anthropic-thinking-modified", {}) if latest else ("anthropic-signature", words)
    if sealed == bound:
        return None
    return "anthropic-bound", {**words, "differs": _what_differs(sealed, bound)}


def _what_differs(sealed: Mapping[str, str], bound: Mapping[str, str]) -> str:
    if sealed["system"] != bound["system"]:
        return "The `system` prompt differs from the one this block was created with."
    if sealed["tools"] != bound["tools"]:
        return "The `tools` list differs from the one this block was created with."
    return "The messages before this block differ from those it was created with."


def _check_turn_begins_with_thinking(messages: list[JsonObject]) -> None:
    """Of the tool loop that is under way, if one is: its first assistant message."""
    place = len(messages) - 1
    if not _has_results(messages[place]):
        return
    while place >= 2 and _has_results(messages[place]):
        place -= 2
    opening = place + 1
    while messages[opening - 1]["role"] == "assistant":
        opening -= 1  # messages of one role in a row are one turn
    first = blocks_of(messages[opening]["content"])[0]["type"]
    if first not in THINKING_BLOCKS:
        path = ("messages", opening, "content", 0, "type")
        raise ANTHROPIC["anthropic-begins-with-thinking"].at(path, found=first)


def _has_results(message: JsonObject) -> bool:
    return any(block["type"] == "tool_result" for block in blocks_of(message["content"]))
