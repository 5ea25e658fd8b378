"""The rules of `POST /v1/responses`.

That reasoning and what it led to belong together is reported since 2025; in September 2026
one user saw it no longer enforced without `store`, it is held here. Encrypted reasoning is
bound to its model and not to what came before. Nothing is stored: earlier responses and item
references are never found.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.vendors.answer_schemas import check_responses_format
from tests.vendors.fields import (
    JsonObject,
    Path,
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
    check_tools,
)
from tests.vendors.responses_shapes import (
    CALL_ID_CHARACTERS_MAX,
    FUNCTION,
    ITEMS,
    MESSAGES,
    PARTS,
    check_item_id,
)
from tests.vendors.seals import Seals, digest
from tests.vendors.tokens import canonical

OUTPUT_TOKENS_MIN = 16


def check_parameters(body: JsonObject, model: GptModel) -> None:
    check_sampling(body)
    check_cache_key(body)
    if model.reasons:
        for name in ("temperature", "top_p"):
            if body.get(name) is not None:
                raise unsupported(name)
        check_effort((body.get("reasoning") or {}).get("effort"), ("reasoning", "effort"), model)
    elif (body.get("reasoning") or {}).get("effort") is not None:
        raise unsupported("reasoning.effort")
    wanted = body.get("max_output_tokens")
    check_range(
        wanted, ("max_output_tokens",), SAY, least=OUTPUT_TOKENS_MIN, most=model.output_tokens_max
    )
    check_responses_format(body)
    for place, name in enumerate(body.get("include") or []):
        check_choice(name, ("include", place), ("reasoning.encrypted_content",), SAY)
    earlier = body.get("previous_response_id")
    if earlier is not None:
        rule = OPENAI["openai-previous-response"]
        raise rule.refusal(param="previous_response_id", id=earlier)
    check_tools(body, FUNCTION)


def check_input(body: JsonObject, seals: Seals, led_to: Mapping[str, str]) -> None:
    """`led_to`: which reasoning item each item of an earlier answer came from."""
    items = body["input"]
    if isinstance(items, str):
        return
    if not items:
        raise SAY.empty_array(("input",))
    for place, item in enumerate(items):
        _check_item(item, ("input", place))
    _check_unique(items)
    _check_outputs(items)
    _check_reasoning(body, seals)
    _check_led_to(items, led_to)


def check_window(tokens: int, model: GptModel) -> None:
    if tokens > model.window_tokens:
        raise OPENAI["openai-responses-window"].refusal(param="input")


def sealed_reasoning(model: str, item: JsonObject) -> dict[str, str]:
    return {"model": model, "id": item["id"], "summary": digest(canonical(item["summary"]))}


def _check_item(item: object, path: Path) -> None:
    kind = item.get("type", "message") if isinstance(item, dict) else "message"
    check_choice(kind, (*path, "type"), ("message", *ITEMS), SAY)
    if kind == "item_reference":
        item_id = item.get("id") if isinstance(item, dict) else ""
        raise OPENAI["openai-item"].refusal(param="input", id=item_id)
    if kind == "message":
        _check_message(item, path)
        return
    item = check_shape(item, path, ITEMS[kind], SAY)
    check_item_id(item, kind, path)
    if "call_id" in item:
        check_name(item["call_id"], (*path, "call_id"), "^.+$", SAY, most=CALL_ID_CHARACTERS_MAX)


def _check_message(item: object, path: Path) -> None:
    role = discriminator(item, path, "role", SAY)
    check_choice(role, (*path, "role"), tuple(MESSAGES), SAY)
    item = check_shape(item, path, MESSAGES[role], SAY)
    if role == "assistant":
        check_item_id(item, "message", path)
    if isinstance(item["content"], str):
        return
    parts = PARTS["assistant" if role == "assistant" else "user"]
    for place, part in enumerate(item["content"]):
        part_path = (*path, "content", place)
        check_choice(discriminator(part, part_path, "type", SAY), part_path, tuple(parts), SAY)
        check_shape(part, part_path, parts[part["type"]], SAY)


def _check_unique(items: list[JsonObject]) -> None:
    seen: set[str] = set()
    for item in items:
        item_id = item.get("id")
        if item_id in seen:
            raise OPENAI["openai-two-items"].refusal(param="input", id=item_id)
        if item_id is not None:
            seen.add(item_id)


def _check_outputs(items: list[JsonObject]) -> None:
    calls: set[str] = set()
    outputs: set[str] = set()
    for item in items:
        match item.get("type"):
            case "function_call":
                if item["call_id"] in calls:
                    rule = OPENAI["openai-two-calls"]
                    raise rule.refusal(param="input", id=item["call_id"])
                calls.add(item["call_id"])
            case "function_call_output":
                if item["call_id"] not in calls or item["call_id"] in outputs:
                    rule = OPENAI["openai-output-without-call"]
                    raise rule.refusal(param="input", id=item["call_id"])
                outputs.add(item["call_id"])
    for call_id in sorted(calls - outputs):
        raise OPENAI["openai-call-without-output"].refusal(param="input", id=call_id)


def _check_reasoning(body: JsonObject, seals: Seals) -> None:
    items = body["input"]
    for place, item in enumerate(items):
        if item.get("type") != "reasoning":
            continue
        sealed = item.get("encrypted_content")
        if sealed is None:
            stored = body.get("store") is not False
            rule = OPENAI["openai-item" if stored else "openai-item-not-stored"]
            raise rule.refusal(param="input", id=item["id"])
        if seals.contents(sealed) != sealed_reasoning(body["model"], item):
            raise OPENAI["openai-encrypted"].refusal(id=item["id"])
        following = items[place + 1] if place + 1 < len(items) else {}
        if following.get("type") not in ("reasoning", "function_call") and (
            following.get("role") != "assistant"
        ):
            raise OPENAI["openai-reasoning-alone"].refusal(param="input", id=item["id"])


def _check_led_to(items: list[JsonObject], led_to: Mapping[str, str]) -> None:
    seen: set[str] = set()
    for item in items:
        item_id = item.get("id") or ""
        reasoning = led_to.get(item_id)
        if reasoning is not None and reasoning not in seen:
            raise OPENAI["openai-without-reasoning"].refusal(
                param="input",
                id=item_id,
                type=item.get("type", "message"),
                reasoning=reasoning,
            )
        seen.add(item_id)
