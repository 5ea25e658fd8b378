"""The rules of `POST /v1/chat/completions`.

Sentences are OpenAI's as users have reported them. A call's id was refused above 40
characters for years and above 64 of late (both reported); the narrower is held. Assumed:
arguments of a call in `messages` are a JSON object (OpenAI lets others pass, vLLM and
llama.cpp behind the same API do not), and one choice per request.
"""

from __future__ import annotations

import orjson
from tests.vendors.answer_schemas import check_chat_format
from tests.vendors.chat_calls import check_answers_of_tools
from tests.vendors.chat_shapes import (
    CALL,
    CALLED,
    FUNCTION,
    MESSAGES,
    PARTS,
    STREAM_OPTIONS,
    TOOL,
)
from tests.vendors.fields import (
    JsonObject,
    Path,
    Shape,
    check_choice,
    check_name,
    check_range,
    check_shape,
    discriminator,
)
from tests.vendors.models import GptModel
from tests.vendors.openai_api import check_cache_key, check_effort, check_sampling, unsupported
from tests.vendors.openai_tools import (
    SAY,
    check_choice_of_tools,
    check_function,
    check_function_name,
    check_tool_count,
)
from tests.vendors.rejections import Rejection
from tests.vendors.wordings import invalid

CALL_ID_CHARACTERS_MAX = 40


def check_chat(body: object, model: GptModel) -> None:
    assert isinstance(body, dict)
    _check_parameters(body, model)
    check_chat_format(body, model)
    if body.get("tools") is not None:
        check_tool_count(body["tools"])
        for place, tool in enumerate(body["tools"]):
            path: Path = ("tools", place)
            tool = check_shape(tool, path, TOOL, SAY)
            check_choice(tool["type"], (*path, "type"), ("function",), SAY)
            path = (*path, "function")
            check_function(check_shape(tool["function"], path, FUNCTION, SAY), path)
    check_choice_of_tools(body)
    if not body["messages"]:
        raise SAY.empty_array(("messages",))
    for place, message in enumerate(body["messages"]):
        _check_message(_as_openai_has_it(message, model), ("messages", place))
    check_answers_of_tools(body["messages"])
    _check_what_must_come_back(body["messages"], model)


def check_window(tokens: int, model: GptModel) -> None:
    if tokens > model.window_tokens:
        raise invalid(
            f"This model's maximum context length is {model.window_tokens} tokens. However, your"
            f" messages resulted in {tokens} tokens. Please reduce the length of the messages.",
            ("messages",),
            code="context_length_exceeded",
        )


def _check_parameters(body: JsonObject, model: GptModel) -> None:
    check_sampling(body)
    check_cache_key(body)
    check_range(body.get("n"), ("n",), SAY, least=1, most=1)
    if model.reasons and body.get("temperature") not in (None, 1):
        raise invalid(
            f"Unsupported value: 'temperature' does not support {body['temperature']} with this"
            " model. Only the default (1) value is supported.",
            ("temperature",),
            code="unsupported_value",
        )
    if model.reasons and body.get("max_tokens") is not None:
        raise unsupported("max_tokens", instead="max_completion_tokens")
    if not model.reasons and body.get("reasoning_effort") is not None:
        raise Rejection("Unrecognized request argument supplied: reasoning_effort")
    if model.reasons:
        check_effort(body.get("reasoning_effort"), ("reasoning_effort",), model)
        _check_tools_with_effort(body, model)
    for name in ("max_tokens", "max_completion_tokens"):
        check_range(body.get(name), (name,), SAY, least=1)
        if (body.get(name) or 0) > model.output_tokens_max:
            raise invalid(
                f"{name} is too large: {body[name]}. This model supports at most"
                f" {model.output_tokens_max} completion tokens, whereas you provided {body[name]}.",
                (name,),
                code="invalid_value",
            )
    if body.get("stream_options") is not None:
        check_shape(body["stream_options"], ("stream_options",), STREAM_OPTIONS, SAY)
        if not body.get("stream"):
            raise invalid(
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
                ("stream_options",),
            )


def _check_tools_with_effort(body: JsonObject, model: GptModel) -> None:
    """LibreChat issue 14231 has the sentence; LiteLLM pull request 34569 shows that a request
    without an effort is refused too."""
    effort = body.get("reasoning_effort")
    needs = model.tools_on_chat
    is_fine = effort == "none" or (effort is None and needs == "without an effort")
    if body.get("tools") and needs != "with any effort" and not is_fine:
        raise invalid(
            f"Function tools with reasoning_effort are not supported for {model.name} in"
            " /v1/chat/completions. To use function tools, use /v1/responses or set"
            " reasoning_effort to 'none'.",
            ("reasoning_effort",),
        )


def _check_message(message: object, path: Path) -> None:
    role = discriminator(message, path, "role", SAY)
    check_choice(role, (*path, "role"), tuple(MESSAGES), SAY)
    message = check_shape(message, path, MESSAGES[role], SAY)
    calls = message.get("tool_calls")
    content = message.get("content")
    if content is None and calls is None and not message.get("refusal"):
        raise Rejection(
            "Invalid value for 'content': expected a string, got null.",
            param=f"messages.[{path[1]}].content",
        )
    if isinstance(content, list):
        _check_parts(content, (*path, "content"), PARTS.get(role, ("text",)))
    if calls is not None:
        if not calls:
            raise SAY.empty_array((*path, "tool_calls"))
        for place, call in enumerate(calls):
            _check_call(call, (*path, "tool_calls", place))
    if role == "tool":
        _check_id(message["tool_call_id"], (*path, "tool_call_id"))


def _as_openai_has_it(message: object, model: GptModel) -> object:
    """Without the field the vendor has of its own."""
    if not isinstance(message, dict):
        return message
    kept = dict(message)
    if model.vendor == "deepseek":
        kept.pop("reasoning_content", None)
    if model.vendor == "gemini" and isinstance(kept.get("tool_calls"), list):
        kept["tool_calls"] = [
            {name: value for name, value in call.items() if name != "extra_content"}
            for call in kept["tool_calls"]
        ]
    return kept


def _check_what_must_come_back(messages: list[JsonObject], model: GptModel) -> None:
    """DeepSeek, "Thinking Mode", Tool calls: the `reasoning_content` of every answer that
    called a tool goes back in all later requests. Gemini, "Thought signatures", Function
    calling: since the last message of the user, the first call of each answer has the
    signature it came with; a call that was made elsewhere has the word that says so. The
    sentences are as users have reported them (DeepSeek-V3 issue 1053, codex issue 7519)."""
    prompts = [place for place, each in enumerate(messages) if each["role"] == "user"]
    for place, message in enumerate(messages):
        calls = message.get("tool_calls")
        if not calls:
            continue
        if model.vendor == "deepseek" and not isinstance(message.get("reasoning_content"), str):
            raise Rejection(
                "The `reasoning_content` in the thinking mode must be passed back to the API.",
                code="invalid_request_error",
            )
        google = (calls[0].get("extra_content") or {}).get("google") or {}
        allowed = (
            f"signature of {calls[0]['function']['name']}",
            "skip_thought_signature_validator",
        )
        if (
            model.vendor == "gemini"
            and place > max(prompts, default=-1)
            and google.get("thought_signature") not in allowed
        ):
            raise Rejection(
                "Function call is missing a thought_signature in functionCall parts. This is"
                " required for tools to work correctly.",
                code="400",
            )


def _check_parts(parts: list[JsonObject], path: Path, allowed: tuple[str, ...]) -> None:
    if not parts:
        raise SAY.empty_array(path)
    for place, part in enumerate(parts):
        kind = discriminator(part, (*path, place), "type", SAY)
        check_choice(kind, (*path, place), allowed, SAY)
        kinds = "string" if kind in ("text", "refusal") else "object"
        known = Shape(required={"type": "string", kind: kinds})
        check_shape(part, (*path, place), known, SAY)


def _check_call(call: object, path: Path) -> None:
    call = check_shape(call, path, CALL, SAY)
    check_choice(call["type"], (*path, "type"), ("function",), SAY)
    _check_id(call["id"], (*path, "id"))
    function = check_shape(call["function"], (*path, "function"), CALLED, SAY)
    check_function_name(function["name"], (*path, "function", "name"))
    try:
        given = orjson.loads(function["arguments"])
    except orjson.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        raise invalid(
            "Invalid tool call arguments: expected a JSON object.",
            (*path, "function", "arguments"),
            code="invalid_value",
        )


def _check_id(call_id: str, path: Path) -> None:
    check_name(call_id, path, "^.+$", SAY, most=CALL_ID_CHARACTERS_MAX)
