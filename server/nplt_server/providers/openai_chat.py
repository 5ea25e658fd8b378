"""OpenAI's chat completions, which most other servers speak: the parser of answers, and the
rendering of requests. Both are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from nplt_protocol import JsonObject, JsonValue
from nplt_server.providers import (
    LlmRequest,
    ModelOutputDelta,
    OpaquePiece,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
)
from nplt_server.providers.compiler import (
    AssistantStep,
    CompiledContext,
    CompiledStep,
    UserStep,
)
from nplt_server.providers.openai import (
    DOES_NOT_REASON,
    FAMILY,
    chat_effort_of,
    rendered_tools,
    sampling_of,
    schema_format,
    seqs_of_user_step,
    tool_options,
    usage_of,
    without_nulls,
)
from nplt_server.providers.sse import object_of, text_of
from nplt_server.providers.vendor_api import (
    AnswerParser,
    RenderedRequest,
    RenderedStep,
    Rendering,
    VendorApi,
    as_json,
    without_fields,
)
from nplt_server.request_form import RequestForm

# ------------------------------------------------------------------------------
# `POST /chat/completions`: its chunks
#
# Servers differ in what they omit: calls without an index, an index that is always 0, a name
# in every piece. Reasoning has two names. An answer is complete when a stop reason *and*
# `[DONE]` came.

_REASONING_FIELD = "reasoning_field"
_EXTRA_CONTENT = "extra_content"
"""Gemini's, of a call: the signature of the thought that led to it. It goes back as it came."""
_DONE = b"[DONE]"
_STOP_REASONS = {
    "stop": "end",
    "function_call": "tool_calls",
    # Of servers that speak this API with words of their own.
    "eos": "end",
    "eos_token": "end",
    "stop_sequence": "end",
    "end_turn": "end",
    "tool_use": "tool_calls",
    "content_filter": "filter",
    # Mistral's, where the window was full before the limit of the answer was reached.
    "model_length": "window",
}


class ChatParser(AnswerParser):
    """`is_thinking` stays false: a model that thinks says so here, or nothing."""

    def __init__(
        self, own_names: Mapping[str, str], *, marks_reasoning: bool = False, repeats: str = ""
    ) -> None:
        """`repeats`: the text that the answer begins with because it was sent; it is left out."""
        super().__init__(own_names)
        self._marks_reasoning = marks_reasoning
        self._repeats = repeats
        self._held = ""
        """The part of the repeated text that has been received so far."""
        self._numbers: dict[int | None, int] = {}
        """The number of each call, by the index that the server gave last."""
        self._call_ids: list[JsonValue] = []
        self._reasoning_field = ""
        self._refused = False
        self._reason = ""

    def feed(self, data: bytes) -> list[ModelOutputDelta]:
        if data.startswith(_DONE):
            self.is_done = True
            return self._ending()
        return super().feed(data)

    def _read(self, event: JsonObject) -> Iterator[ModelOutputDelta]:
        if event.get("error"):
            raise self._failure(event)
        choices = event.get("choices")
        choice = object_of(choices[0]) if isinstance(choices, list) and choices else {}
        delta = object_of(choice.get("delta"))
        for field in ("reasoning_content", "reasoning"):
            if field in delta and (thought := text_of(delta[field])):
                self._reasoning_field = field
                yield ReasoningPiece(text=thought)
                break  # some servers send both, the same twice
        content = delta.get("content")
        if isinstance(content, str):
            text = self._without_repeated(content) if self._repeats else content
            if text:
                yield TextPiece(text=text)
        elif isinstance(content, list):
            yield from self._chunks(content)
        if "refusal" in delta and (refusal := text_of(delta["refusal"])):
            self._refused = True
            yield TextPiece(text=refusal)
        if isinstance(calls := delta.get("tool_calls"), list):
            for call in calls:
                yield from self._call_pieces(call)
        self._reason = text_of(choice.get("finish_reason")) or self._reason
        if isinstance(usage := event.get("usage"), dict):
            yield usage_of(usage, sent="prompt", output="completion")

    def _chunks(self, content: list[JsonValue]) -> Iterator[ModelOutputDelta]:
        """Content of Mistral's models that think (docs.mistral.ai/capabilities/reasoning)."""
        for chunk in content:
            match chunk:
                case {"type": "thinking", "thinking": [*parts]}:
                    for part in parts:
                        if isinstance(part, dict) and (thought := text_of(part.get("text"))):
                            yield ReasoningPiece(text=thought)
                case {"type": "text", "text": str(text)} if text:
                    text = self._without_repeated(text) if self._repeats else text
                    if text:
                        yield TextPiece(text=text)
                case _:
                    pass

    def _without_repeated(self, text: str) -> str:
        text, self._held = self._held + text, ""
        if self._repeats.startswith(text) and text != self._repeats:
            self._held = text
            return ""
        text, self._repeats = text.removeprefix(self._repeats), ""
        return text

    def _read_whole(self, answer: Any) -> Iterator[ModelOutputDelta]:
        choice = answer["choices"][0]
        yield from self._read({**answer, "choices": [{**choice, "delta": choice["message"]}]})
        yield from self.feed(_DONE)

    def _call_pieces(self, call: JsonValue) -> Iterator[ModelOutputDelta]:
        """Numbers are ours, in the order the calls begin."""
        if not isinstance(call, dict):
            return
        shown, call_id, index = object_of(call.get("function")), call.get("id"), call.get("index")
        index = index if isinstance(index, int) else None
        number, name = self._numbers.get(index), text_of(shown.get("name"))
        # Without an index whatever has a name is a call of its own.
        if number is None or (
            name and (index is None or (call_id and call_id != self._call_ids[number]))
        ):
            number = self._numbers[index] = len(self._call_ids)
            self._call_ids.append(call_id)
            name = self._own_names.get(name, name)
        else:
            name = ""
        arguments = text_of(shown.get("arguments"))
        yield ToolCallPiece(index=number, tool_name=name, arguments=arguments)
        if isinstance(extra := call.get(_EXTRA_CONTENT), dict):
            yield OpaquePiece(data={_EXTRA_CONTENT: extra, "call": number})

    def _ending(self) -> list[ModelOutputDelta]:
        if not self._reason:
            return []
        reason = _STOP_REASONS.get(self._reason, self._reason)
        if self._refused:
            reason = "refusal"
        elif reason == "end" and self._call_ids:
            reason = "tool_calls"
        ending: list[ModelOutputDelta] = [Stopped(reason=reason)]
        if self._held:  # it was no repetition
            ending.insert(0, TextPiece(text=self._held))
        if self._marks_reasoning and self._reasoning_field:
            ending.insert(0, OpaquePiece(data={_REASONING_FIELD: self._reasoning_field}))
        if any(_is_kept(call_id) for call_id in self._call_ids):
            ending.insert(0, OpaquePiece(data={"call_ids": [*self._call_ids]}))
        return ending


# ------------------------------------------------------------------------------
# `POST /chat/completions`: the body of a request
#
# One `tool` message per result, then what the user said. `stream_options` goes to every
# server: those that don't know it ignore it.

_SIGNS_CALLS = re.compile(r"(?:models/)?gemini")
_NOT_SIGNED: JsonObject = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""The documented signature for a call that another model made."""
_BRIDGE: JsonObject = {"role": "assistant", "content": "I have read the results."}
_ANY_ID = re.compile(r"[!-~]{1,64}")
_NINE = re.compile(r"[a-zA-Z0-9]{9}")


def _is_kept(call_id: JsonValue) -> bool:
    """Whether the model is sent this id of its own again, and not ours. Some take only ids of
    their own kind: nine letters and digits, `functions.look:0`."""
    return isinstance(call_id, str) and bool(call_id) and not call_id.startswith("call_")


class ChatApi(VendorApi, frozen=True, kw_only=True):
    specification: ClassVar[str] = "openai-chat"
    has_cache_key: bool = False

    def parser(self, rendered: RenderedRequest) -> ChatParser:
        returns = self._returns_reasoning(rendered.fields["model"])
        return ChatParser(rendered.own_names, marks_reasoning=returns, repeats=rendered.repeats)

    def may_prefill(self, model: str) -> bool:
        return self.form.prefill is not None

    def takes_prefill(self, rendered: RenderedRequest) -> bool:
        return "response_format" not in rendered.fields

    def _returns_reasoning(self, model: str) -> bool:
        """DeepSeek wants to see its reasoning again, OpenAI refuses a field it doesn't know."""
        if self.form.returns_reasoning is not None:
            return self.form.returns_reasoning
        return model.startswith("deepseek")

    def other_reasoning(self, model: str) -> RequestForm:
        """DeepSeek refuses calls without the reasoning that led to them; others refuse the
        field. Which it is, a refusal tells."""
        return RequestForm(returns_reasoning=not self._returns_reasoning(model))

    def render(
        self, request: LlmRequest, compiled: CompiledContext, rendering: Rendering | None = None
    ) -> RenderedRequest:
        model, form = request.invocation.model, self.form
        rendering = rendering or Rendering()
        instruction = "" if form.puts_instruction_first else compiled.system
        is_prefixed = form.puts_instruction_first and compiled.system
        prefix = f"{compiled.system}\n\n" if is_prefixed else ""
        first, last = compiled.steps[0], compiled.steps[-1]

        def render(step: CompiledStep) -> RenderedStep:
            if isinstance(step, UserStep):
                return self._user_step(step, rendering.call_ids, prefix if step is first else "")
            answer = self._answer(step, model, rendering.call_ids)
            if step is last:
                answer["prefix"] = True
            return RenderedStep(messages=(as_json(answer),), seqs=(step.seqs,))

        steps = rendering.extend(
            compiled.steps,
            render,
            made_for=(self, model, prefix),
            vendor_id=_NINE if form.call_ids == "9 alphanumeric" else _ANY_ID,
        )
        messages = rendering.messages(steps)
        if instruction:
            messages.insert(0, as_json({"role": "system", "content": instruction}))
        body: JsonObject = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        functions, names = rendered_tools(rendering, request.tools)
        if functions:
            body["tools"] = [{"type": "function", "function": each} for each in functions]
        options: JsonObject = {
            form.tokens_field or "max_completion_tokens": request.output_tokens,
            "reasoning_effort": chat_effort_of(request),
            "prompt_cache_key": request.cache_key if self.has_cache_key else None,
            **(_other_options(request) if request.options else {}),
        }
        fields = without_fields(body | without_nulls(options), form.without)
        return RenderedRequest(
            repeats=self._repeated(last),
            fields=fields,
            messages=messages,
            steps=steps,
            messages_before=1 if instruction else 0,
            own_names=names,
        )

    def _repeated(self, last: CompiledStep) -> str:
        """The beginning of the answer that the server will send once more."""
        if isinstance(last, UserStep) or self.form.prefill != "repeated prefix":
            return ""
        return last.text

    def _user_step(self, step: UserStep, ids: Mapping[str, str], prefix: str) -> RenderedStep:
        messages, seqs = self._user_messages(step, ids, prefix=prefix), seqs_of_user_step(step)
        if self.form.bridges_results and step.results and step.texts:
            messages.insert(-1, _BRIDGE)
            seqs.insert(-1, ())
        return RenderedStep(messages=tuple(map(as_json, messages)), seqs=tuple(seqs))

    def _answer(self, step: AssistantStep, model: str, ids: Mapping[str, str]) -> JsonObject:
        # An answer of nothing but calls has no content; as a string that is an empty one.
        content: JsonValue = step.text or ("" if self.form.plain_content else None)
        message: JsonObject = {"role": "assistant", "content": content}
        opaque = [block.data for block in step.blocks if isinstance(block, OpaquePiece)]
        if step.calls:
            extras = {
                place: data[_EXTRA_CONTENT]
                for data in opaque
                if _EXTRA_CONTENT in data and isinstance(place := data.get("call"), int)
            }
            if 0 not in extras and _SIGNS_CALLS.match(model):
                extras[0] = _NOT_SIGNED
            message["tool_calls"] = [
                {
                    "id": ids[call.call_id],
                    "type": "function",
                    "function": {"name": call.tool_name, "arguments": call.arguments_json},
                    **({_EXTRA_CONTENT: extras[place]} if place in extras else {}),
                }
                for place, call in enumerate(step.calls)
            ]
        # With a call it must be there, though another model made the call without one.
        if self._returns_reasoning(model) and (step.reasoning or step.calls):
            is_short = any(data.get(_REASONING_FIELD) == "reasoning" for data in opaque)
            message["reasoning" if is_short else "reasoning_content"] = step.reasoning
        return message

    def _user_messages(
        self, step: UserStep, ids: Mapping[str, str], *, prefix: str
    ) -> list[JsonObject]:
        messages: list[JsonObject] = [
            {"role": "tool", "tool_call_id": ids[result.call_id], "content": result.text}
            for result in step.results
        ]
        if step.texts:
            # One message: templates of some models refuse two of the same role in a row. And a
            # plain text wherever that will do: some servers know nothing else.
            text = prefix + "\n\n".join(step.texts)
            takes_images = not (self.form.without_images or self.form.plain_content)
            # developers.openai.com/api/docs/guides/file-inputs: "Chat Completions accepts only PDF
            # files as `file` content parts."
            files: list[JsonValue] = [
                {"type": "file", "file": {"filename": one.name, "file_data": one.url}}
                for one in step.documents
                if not self.form.plain_content
            ]
            files += [
                {"type": "image_url", "image_url": {"url": image.url}}
                for image in step.images
                if takes_images
            ]
            content: JsonValue = [*files, {"type": "text", "text": text}] if files else text
            messages.append({"role": "user", "content": content})
        return messages


def _named_function(name: str) -> JsonObject:
    return {"type": "function", "function": {"name": name}}


def _other_options(request: LlmRequest) -> JsonObject:
    """The fields that are sent only where the prompt or the settings ask for them."""
    return {
        **sampling_of(request),
        "stop": request.stop or None,
        "seed": request.seed,
        **tool_options(request, _named_function),
        **_answer_format(request),
    }


def _answer_format(request: LlmRequest) -> JsonObject:
    """Other servers than OpenAI's hold a model to a schema word by word, so that it can't call
    a tool: they are sent the schema where no tool need be called any more."""
    model, schema = request.invocation.model, request.schema
    if schema is None:
        return {}
    others = not (FAMILY.match(model) or DOES_NOT_REASON.match(model))
    if others and request.tools and not request.answer_only:
        return {}
    shown = schema_format(request)
    if shown is None and others:
        shown = {"name": "answer", "schema": schema}
    options: JsonObject = {"tool_choice": "none"} if others and request.tools else {}
    if model.startswith("deepseek"):  # it knows no schemas
        options["response_format"] = {"type": "json_object"}
    elif shown is not None:
        options["response_format"] = {"type": "json_schema", "json_schema": shown}
    return options
