"""Every call in chat messages is answered by the `tool` messages right behind it.

OpenAI's sentences as users have reported them, but for the one about a call that is
answered twice, which is remembered without a source.
"""

from __future__ import annotations

from tests.vendors.fields import JsonObject
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
        raise Rejection(
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding"
            " message with 'tool_calls'.",
            param=f"messages.[{place}].role",
        )
    if call_id not in asked:
        raise Rejection(
            f"Invalid parameter: 'tool_call_id' of '{call_id}' not found in 'tool_calls' of"
            " previous message.",
            param=f"messages.[{place}].tool_call_id",
        )
    if call_id in answered:
        raise _duplicate(call_id, place)


def _without_results(call_ids: list[str], place: int) -> Rejection:
    return Rejection(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to"
        " each 'tool_call_id'. The following tool_call_ids did not have response messages:"
        f" {', '.join(call_ids)}",
        param=f"messages.[{place}].role",
    )


def _duplicate(call_id: str, place: int) -> Rejection:
    return Rejection(
        f"Invalid parameter: Duplicate value for 'tool_call_id' of '{call_id}'",
        param=f"messages.[{place}].tool_call_id",
    )
