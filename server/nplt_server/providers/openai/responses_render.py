"""A compiled context as the body of `POST /responses`. Pure.

Nothing is to be kept on the server (`store`), so reasoning is asked for in its encrypted
form, where the model may have any.
"""

from __future__ import annotations

from dataclasses import dataclass

from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_server.providers.base import ModelRequest
from nplt_server.providers.compiling import Compiled, UserStep, VendorRules, compile_context
from nplt_server.providers.openai.blame import seqs_of_heard
from nplt_server.providers.openai.dialect import ApiPath, Rendered
from nplt_server.providers.openai.offering import (
    effort_of,
    functions_of,
    may_reason,
    names_of,
    output_tokens_of,
    temperature_of,
)
from nplt_server.providers.openai.responses_items import AnswerItems
from nplt_server.providers.openai.responses_parse import ResponsesParser

RULES = VendorRules(call_id_characters_max=64, tool_name_characters_max=64)
_OUTPUT_TOKENS_MIN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesDialect:
    summarizes_reasoning: bool = False
    """OpenAI refuses it to organisations that have not shown who they are."""

    @property
    def specification(self) -> str:
        return "openai-responses"

    @property
    def path(self) -> ApiPath:
        return "/responses"

    def parser(self, rendered: Rendered) -> ResponsesParser:
        return ResponsesParser(rendered.own_names)

    @property
    def rules(self) -> VendorRules:
        return RULES

    def render(self, request: ModelRequest, compiled: Compiled | None = None) -> Rendered:
        if compiled is None:
            compiled = compile_context(request.context, rules=RULES, origin=request.invocation)
        items: list[JsonValue] = []
        seqs: list[tuple[int, ...]] = []
        answers = AnswerItems()
        for step in compiled.steps:
            if isinstance(step, UserStep):
                items += _heard(step)
                seqs += seqs_of_heard(step)
            else:
                said = answers.of(step)
                items += said
                seqs += [step.seqs] * len(said)
        body: JsonObject = {
            "model": request.invocation.model,
            "input": items,
            "stream": True,
            "store": False,
        }
        if compiled.system:
            body["instructions"] = compiled.system
        functions = functions_of(request.tools, RULES)
        if functions:
            # Strict is what it would be if nothing were said, and most schemas don't fit it.
            body["tools"] = [{"type": "function", **each, "strict": False} for each in functions]
        return Rendered(
            body=body | self._options(request),
            seqs=tuple(seqs),
            own_names=names_of(request.tools, RULES),
        )

    def _options(self, request: ModelRequest) -> JsonObject:
        options: JsonObject = {}
        tokens = output_tokens_of(request)
        if tokens is not None:
            options["max_output_tokens"] = max(tokens, _OUTPUT_TOKENS_MIN)
        temperature = temperature_of(request)
        if temperature is not None:
            options["temperature"] = temperature
        if may_reason(request.invocation.model):
            options["include"] = ["reasoning.encrypted_content"]
            reasoning: JsonObject = {}
            effort = effort_of(request)
            if effort is not None:
                reasoning["effort"] = effort
            if self.summarizes_reasoning:
                reasoning["summary"] = "auto"
            if reasoning:
                options["reasoning"] = reasoning
        return options


def _heard(step: UserStep) -> list[JsonObject]:
    items: list[JsonObject] = [
        {"type": "function_call_output", "call_id": result.call_id, "output": result.text}
        for result in step.results
    ]
    if step.texts:
        text: JsonObject = {"type": "input_text", "text": "\n\n".join(step.texts)}
        images: list[JsonValue] = [
            {"type": "input_image", "image_url": image.url} for image in step.images
        ]
        items.append({"type": "message", "role": "user", "content": [*images, text]})
    return items
