"""Every call in chat messages is answered by the `tool` messages right behind it."""

from __future__ import annotations

from tests.vendors.fields import JsonObject
from tests.vendors.openai_rules import OPENAI
from tests.vendors.rejections import Rejection


def check_answers_of_tools(messages: list[JsonObject]) -> None:
    answered: set[str] = set()
    asked: list[str] = []
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            _check_tool_message(call_id, place, asked=asked, answered=answered)
            answered.add(call_id)
            continue
        open_ids = [each for each in asked if each not in answered]
        if open_ids:
            raise _without_results(open_ids, place)
        asked = [call["id"] for call in message.get("tool_calls") or []]
        answered = set()
        if len(set(asked)) < len(asked):
            raise _duplicate(asked[-1], place)
    open_ids = [each for each in asked if each not in answered]
    if open_ids:
        raise _without_results(open_ids, len(messages) - 1)


def _check_tool_message(call_id: str, place: int, *, asked: list[str], answered: set[str]) -> None:
    if not asked:
        raise OPENAI["openai-result-without-calls"].refusal(param=f"messages.[{place}].role")
    if call_id not in asked:
        raise OPENAI["openai-result-of-no-call"].refusal(
            param=f"messages.[{place}].tool_call_id", id=call_id
        )
    if call_id in answered:
        raise _duplicate(call_id, place)


def _without_results(call_ids: list[str], place: int) -> Rejection:
    return OPENAI["openai-call-without-result"].refusal(
        param=f"messages.[{place}].role", ids=", ".join(call_ids)
    )


def _duplicate(call_id: str, place: int) -> Rejection:
    return OPENAI["openai-two-results"].refusal(
        param=f"messages.[{place}].tool_call_id", id=call_id
    )
