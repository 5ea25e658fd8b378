"""The rules of `POST /v1/chat/completions`.

A call's id was refused above 40 characters for years and above 64 of late (both reported);
the narrower is held. Only one choice per request is allowed.
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
from tests.vendors.openai_rules import OPENAI
from tests.vendors.openai_tools import (
    SAY,
    check_function_name,
    check_tools,
)
from tests.vendors.wordings import bracketed

CALL_ID_CHARACTERS_MAX = 40


def check_chat(body: object, model: GptModel) -> None:
    assert isinstance(body, dict)
    _check_parameters(body, model)
    check_chat_format(body, model)
    check_tools(body, TOOL, inside=FUNCTION)
    if not body["messages"]:
        raise SAY.empty_array(("messages",))
    for place, message in enumerate(body["messages"]):
        _check_message(_as_openai_has_it(message, model), ("messages", place))
    check_answers_of_tools(body["messages"])
    _check_what_must_come_back(body["messages"], model)


def check_window(tokens: int, model: GptModel) -> None:
    if tokens > model.window_tokens:
        raise OPENAI["openai-chat-window"].refusal(
            param="messages", window=model.window_tokens, tokens=tokens
        )


def _check_parameters(body: JsonObject, model: GptModel) -> None:
    check_sampling(body)
    check_cache_key(body)
    check_range(body.get("n"), ("n",), SAY, least=1, most=1)
    if model.reasons and body.get("temperature") not in (None, 1):
        rule = OPENAI["openai-chat-temperature"]
        raise rule.refusal(param="temperature", value=body["temperature"])
    if model.reasons and body.get("max_tokens") is not None:
        raise unsupported("max_tokens", instead="max_completion_tokens")
    if not model.reasons and body.get("reasoning_effort") is not None:
        raise OPENAI["openai-no-effort"].refusal()
    if model.reasons:
        check_effort(body.get("reasoning_effort"), ("reasoning_effort",), model)
        _check_tools_with_effort(body, model)
    for name in ("max_tokens", "max_completion_tokens"):
        check_range(body.get(name), (name,), SAY, least=1)
        if (body.get(name) or 0) > model.output_tokens_max:
            raise OPENAI["openai-chat-length"].refusal(
                param=name, name=name, value=body[name], most=model.output_tokens_max
            )
    if body.get("stream_options") is not None:
        check_shape(body["stream_options"], ("stream_options",), STREAM_OPTIONS, SAY)
        if not body.get("stream"):
            raise OPENAI["openai-stream-options"].refusal(param="stream_options")


def _check_tools_with_effort(body: JsonObject, model: GptModel) -> None:
    effort = body.get("reasoning_effort")
    needs = model.tools_on_chat
    is_fine = effort == "none" or (effort is None and needs == "without an effort")
    if body.get("tools") and needs != "with any effort" and not is_fine:
        rule = OPENAI["openai-tools-with-effort"]
        raise rule.refusal(param="reasoning_effort", model=model.name)


def _check_message(message: object, path: Path) -> None:
    role = discriminator(message, path, "role", SAY)
    check_choice(role, (*path, "role"), tuple(MESSAGES), SAY)
    message = check_shape(message, path, MESSAGES[role], SAY)
    calls = message.get("tool_calls")
    content = message.get("content")
    if content is None and calls is None and not message.get("refusal"):
        raise OPENAI["openai-null-content"].refusal(param=f"messages.[{path[1]}].content")
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
    prompts = [place for place, each in enumerate(messages) if each["role"] == "user"]
    for place, message in enumerate(messages):
        calls = message.get("tool_calls")
        if not calls:
            continue
        if model.vendor == "deepseek" and not isinstance(message.get("reasoning_content"), str):
            raise OPENAI["deepseek-reasoning"].refusal()
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
            raise OPENAI["gemini-signature"].refusal()


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
        rule = OPENAI["openai-arguments"]
        raise rule.refusal(param=bracketed((*path, "function", "arguments")))


def _check_id(call_id: str, path: Path) -> None:
    check_name(call_id, path, "^.+$", SAY, most=CALL_ID_CHARACTERS_MAX)
