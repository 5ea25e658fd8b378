"""The rules of `POST /v1/responses`.

Sentences are OpenAI's as users have reported them: prefixes, charset and length of item
ids, pairing of calls and outputs, reasoning that must be followed by what it led to and
the other way round (reported since 2025; in September 2026 one user saw it no longer
enforced without `store`, it is held here), encrypted reasoning that must be the server's
own. Assumed: such reasoning is bound to its model and not to what came before; a call has
one output. Nothing is stored: earlier responses and item references are never found.
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
from tests.vendors.openai_tools import (
    SAY,
    check_choice_of_tools,
    check_function,
    check_tool_count,
)
from tests.vendors.rejections import Rejection
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
from tests.vendors.wordings import invalid

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
        raise invalid(
            f"Previous response with id '{earlier}' not found.",
            ("previous_response_id",),
            code="previous_response_not_found",
        )
    if body.get("tools") is not None:
        check_tool_count(body["tools"])
        for place, tool in enumerate(body["tools"]):
            tool = check_shape(tool, ("tools", place), FUNCTION, SAY)
            check_choice(tool["type"], ("tools", place, "type"), ("function",), SAY)
            check_function(tool, ("tools", place))
    check_choice_of_tools(body)


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
        raise invalid(
            "Your input exceeds the context window of this model. Please adjust your input and"
            " try again.",
            ("input",),
            code="context_length_exceeded",
        )


def sealed_reasoning(model: str, item: JsonObject) -> dict[str, str]:
    return {"model": model, "id": item["id"], "summary": digest(canonical(item["summary"]))}


def _check_item(item: object, path: Path) -> None:
    kind = item.get("type", "message") if isinstance(item, dict) else "message"
    check_choice(kind, (*path, "type"), ("message", *ITEMS), SAY)
    if kind == "item_reference":
        raise Rejection(
            f"Item with id '{item.get('id') if isinstance(item, dict) else ''}' not found.",
            status=404,
            param="input",
        )
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
            raise invalid(
                f"Duplicate item found with id {item_id}. Remove duplicate items from your"
                " input and try again.",
                ("input",),
            )
        if item_id is not None:
            seen.add(item_id)


def _check_outputs(items: list[JsonObject]) -> None:
    calls: set[str] = set()
    outputs: set[str] = set()
    for item in items:
        match item.get("type"):
            case "function_call":
                if item["call_id"] in calls:
                    raise invalid(f"Duplicate call_id '{item['call_id']}'.", ("input",))
                calls.add(item["call_id"])
            case "function_call_output":
                if item["call_id"] not in calls or item["call_id"] in outputs:
                    raise invalid(
                        "No tool call found for function call output with call_id"
                        f" {item['call_id']}.",
                        ("input",),
                    )
                outputs.add(item["call_id"])
    for call_id in sorted(calls - outputs):
        raise invalid(f"No tool output found for function call {call_id}.", ("input",))


def _check_reasoning(body: JsonObject, seals: Seals) -> None:
    items = body["input"]
    for place, item in enumerate(items):
        if item.get("type") != "reasoning":
            continue
        sealed = item.get("encrypted_content")
        if sealed is None:
            raise _not_kept(item["id"], stored=body.get("store") is not False)
        if seals.contents(sealed) != sealed_reasoning(body["model"], item):
            raise Rejection(
                f"The encrypted content for item {item['id']} could not be verified. Reason:"
                " Encrypted content could not be decrypted or parsed.",
                code="invalid_encrypted_content",
            )
        following = items[place + 1] if place + 1 < len(items) else {}
        if following.get("type") not in ("reasoning", "function_call") and (
            following.get("role") != "assistant"
        ):
            raise invalid(
                f"Item '{item['id']}' of type 'reasoning' was provided without its required"
                " following item.",
                ("input",),
            )


def _not_kept(item_id: str, *, stored: bool) -> Rejection:
    why = (
        ""
        if stored
        else " Items are not persisted when `store` is set to false. Try again with `store` set"
        " to true, or remove this item from your input."
    )
    return Rejection(f"Item with id '{item_id}' not found.{why}", status=404, param="input")


def _check_led_to(items: list[JsonObject], led_to: Mapping[str, str]) -> None:
    seen: set[str] = set()
    for item in items:
        item_id = item.get("id") or ""
        reasoning = led_to.get(item_id)
        if reasoning is not None and reasoning not in seen:
            raise invalid(
                f"Item '{item_id}' of type '{item.get('type', 'message')}' was provided without"
                f" its required 'reasoning' item: '{reasoning}'.",
                ("input",),
            )
        seen.add(item_id)
