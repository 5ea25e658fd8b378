"""A compiled context as the body of `POST /chat/completions`. Pure.

One `tool` message per result, then what the user said. `stream_options` goes to every
server: those that don't know it pass it over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_server.providers.base import ModelRequest
from nplt_server.providers.compiling import (
    AssistantStep,
    Compiled,
    OpaqueBlock,
    Step,
    UserStep,
    VendorRules,
    blocks_of,
    compile_context,
)
from nplt_server.providers.openai.blame import seqs_of_heard
from nplt_server.providers.openai.chat_parse import REASONING_FIELD, ChatParser
from nplt_server.providers.openai.dialect import ApiPath, Rendered
from nplt_server.providers.openai.offering import (
    effort_of,
    functions_of,
    names_of,
    output_tokens_of,
    temperature_of,
)

RULES = VendorRules(call_id_characters_max=40, tool_name_characters_max=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDialect:
    tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    """OpenAI's reasoning models refuse the second, older servers overlook the first."""
    returns_reasoning: bool = False
    """DeepSeek wants to see its reasoning again, OpenAI refuses a field it doesn't know."""

    @property
    def specification(self) -> str:
        return "openai-chat"

    @property
    def path(self) -> ApiPath:
        return "/chat/completions"

    def parser(self, rendered: Rendered) -> ChatParser:
        return ChatParser(rendered.own_names, marks_reasoning=self.returns_reasoning)

    @property
    def rules(self) -> VendorRules:
        return RULES

    def render(self, request: ModelRequest, compiled: Compiled | None = None) -> Rendered:
        if compiled is None:
            compiled = compile_context(request.context, rules=RULES, origin=request.invocation)
        messages: list[JsonValue] = []
        seqs: list[tuple[int, ...]] = []
        if compiled.system:
            messages.append({"role": "system", "content": compiled.system})
            seqs.append(())
        for step in compiled.steps:
            messages += self._messages_of(step)
            seqs += seqs_of_heard(step) if isinstance(step, UserStep) else (step.seqs,)
        body: JsonObject = {
            "model": request.invocation.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        functions = functions_of(request.tools, RULES)
        if functions:
            body["tools"] = [{"type": "function", "function": each} for each in functions]
        options: dict[str, JsonValue] = {
            self.tokens_field: output_tokens_of(request),
            "temperature": temperature_of(request),
            "reasoning_effort": effort_of(request),
        }
        body |= {name: value for name, value in options.items() if value is not None}
        return Rendered(body=body, seqs=tuple(seqs), own_names=names_of(request.tools, RULES))

    def _messages_of(self, step: Step) -> list[JsonObject]:
        if isinstance(step, AssistantStep):
            return [self._answer(step)]
        return _heard(step)

    def _answer(self, step: AssistantStep) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": step.text or None}
        if step.calls:
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.tool_name, "arguments": call.arguments_json},
                }
                for call in step.calls
            ]
        if self.returns_reasoning and step.reasoning:
            message[_field_of_reasoning(step)] = step.reasoning
        return message


def _heard(step: UserStep) -> list[JsonObject]:
    messages: list[JsonObject] = [
        {"role": "tool", "tool_call_id": result.call_id, "content": result.text}
        for result in step.results
    ]
    if step.texts:
        # One message: templates of some models refuse two of the same role in a row.
        messages.append({"role": "user", "content": _content(step)})
    return messages


def _content(step: UserStep) -> JsonValue:
    """A plain text wherever that will do: some servers know nothing else."""
    text = "\n\n".join(step.texts)
    if not step.images:
        return text
    images: list[JsonValue] = [
        {"type": "image_url", "image_url": {"url": image.url}} for image in step.images
    ]
    return [*images, {"type": "text", "text": text}]


def _field_of_reasoning(step: AssistantStep) -> str:
    """The one it came in."""
    for block in blocks_of(step):
        if isinstance(block, OpaqueBlock):
            field = block.data.get(REASONING_FIELD)
            if field == "reasoning":
                return "reasoning"
    return "reasoning_content"
