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

from tests.vendors.fields import (
    JsonObject,
    Shape,
    check_choice,
    check_range,
    check_shape,
)
from tests.vendors.messages_shapes import SAY, blocks_of
from tests.vendors.models import ClaudeModel
from tests.vendors.rejections import Rejection
from tests.vendors.seals import Seals, digest
from tests.vendors.tokens import canonical
from tests.vendors.wordings import at

BUDGET_TOKENS_MIN = 1024
THINKING_BLOCKS = ("thinking", "redacted_thinking")
_CONSULT = (
    "Please consult our documentation at"
    " https://platform.claude.com/docs/en/build-with-claude/extended-thinking"
)
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
            raise Rejection('"thinking.type.disabled" is not supported for this model.')
        return
    if kind == "enabled" and kind not in model.thinking_kinds:
        raise Rejection(
            '"thinking.type.enabled" is not supported for this model. Use'
            ' "thinking.type.adaptive" and "output_config.effort" to control thinking behavior.'
        )
    if kind not in model.thinking_kinds:
        raise Rejection("adaptive thinking is not supported on this model")
    check_shape(asked, ("thinking", kind), _SHAPES[kind], SAY)
    if body.get("temperature", 1) != 1:
        raise Rejection(
            "`temperature` may only be set to 1 when thinking is enabled or in adaptive"
            f" mode. {_CONSULT}"
        )
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        raise Rejection("Thinking may not be enabled when tool_choice forces tool use.")
    if kind == "enabled":
        budget = asked["budget_tokens"]
        check_range(budget, ("thinking", kind, "budget_tokens"), SAY, least=BUDGET_TOKENS_MIN)
        if budget >= body.get("max_tokens", budget + 1):
            raise Rejection(
                f"`max_tokens` must be greater than `thinking.budget_tokens`. {_CONSULT}"
            )


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
            raise at(
                ("messages", place), f"The final block in an assistant message cannot be `{kind}`."
            )
        for number, block in enumerate(blocks):
            if block["type"] in THINKING_BLOCKS:
                fault = _fault(block, conversation, seals, latest=place == latest)
                if fault is not None:
                    raise at(("messages", place, "content", number), fault)
            conversation.add(message["role"], block)


def _fault(
    block: JsonObject, conversation: Conversation, seals: Seals, *, latest: bool
) -> str | None:
    redacted = block["type"] == "redacted_thinking"
    sealed = seals.contents(block["data"] if redacted else block["signature"])
    refusal = f"Invalid `{'data' if redacted else 'signature'}` in `{block['type']}` block"
    if sealed is None:
        return refusal
    bound = conversation.binding("" if redacted else block["thinking"])
    if sealed["model"] != bound["model"]:
        return refusal
    if sealed["text"] != bound["text"]:
        if not latest:
            return refusal
        return (
            "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be"
            " modified. These blocks must remain as they were in the original response."
        )
    if sealed == bound:
        return None
    return (
        f"{refusal}. The block is bound to a different conversation. Remove the block, or set"
        ' `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
        f" {_what_differs(sealed, bound)}"
    )


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
        raise at(
            ("messages", opening, "content", 0, "type"),
            f"Expected `thinking` or `redacted_thinking`, but found `{first}`. When `thinking`"
            " is enabled, a final `assistant` message must start with a thinking block"
            " (preceeding the lastmost set of `tool_use` and `tool_result` blocks). We"
            " recommend you include thinking blocks from previous turns. To avoid this"
            f" requirement, disable `thinking`. {_CONSULT}",
        )


def _has_results(message: JsonObject) -> bool:
    return any(block["type"] == "tool_result" for block in blocks_of(message["content"]))
