"""Which entries of the history a refusal is about.

A refusal names a message by its place, or an item or a call by its id. A result is a
message of its own there, and so blamed alone; what the user said between two answers is
one.
"""

from __future__ import annotations

import re

from nplt_protocol.json_values import JsonValue
from nplt_server.errors import ProviderRefused
from nplt_server.providers.compiling import UserStep
from nplt_server.providers.openai.dialect import Rendered

_IDS = ("id", "call_id", "tool_call_id")
_ID = re.compile(r"(?=[\w-]*\d)[\w-]{8,}")
"""As a whole. What is shorter or has no digit is as likely a word of the provider's own."""


def seqs_of_heard(step: UserStep) -> list[tuple[int, ...]]:
    """Of each message a step of the user becomes: its results, then its texts as one."""
    seqs: list[tuple[int, ...]] = [(result.seq,) if result.seq else () for result in step.results]
    if step.texts:
        seqs.append(tuple(dict.fromkeys(filter(None, step.text_seqs))))
    return seqs


def with_entries(refusal: ProviderRefused, words: str, rendered: Rendered) -> ProviderRefused:
    index = refusal.message_index
    if index is None and refusal.is_of_request:
        index = _place_by_id(words, rendered)
    if index is None or index >= len(rendered.seqs):
        return refusal
    refusal.message_index, refusal.entry_seqs = index, rendered.seqs[index]
    return refusal


def _place_by_id(words: str, rendered: Rendered) -> int | None:
    messages = rendered.body.get("input") or rendered.body.get("messages")
    if not isinstance(messages, list):
        return None
    told = set(_ID.findall(words))
    for place, message in enumerate(messages):
        if not told.isdisjoint(_ids_of(message)):
            return place
    return None


def _ids_of(message: JsonValue) -> list[str]:
    if not isinstance(message, dict):
        return []
    calls = message.get("tool_calls")
    nested = [each for call in calls for each in _ids_of(call)] if isinstance(calls, list) else []
    ids = [message.get(name) for name in _IDS]
    return [each for each in ids if isinstance(each, str) and each] + nested
