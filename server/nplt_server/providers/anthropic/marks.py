"""Where the vendor is told to cache what it read: four places at the most.

A request is found in the cache up to where an earlier one had a mark, if that is at most
twenty blocks before a mark of this one. So a mark stands where this model's last request
ended, however much has been said since; one where this turn began, for the case that what
followed is taken back; one at the end, for the next request; and one after tools and
instruction, which outlive them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nplt_server.context import ContextMessage, ModelInputMessage, ModelOutputMessage
from nplt_server.providers.anthropic.wire import Json
from nplt_server.providers.compiling import AssistantStep, Step, UserStep
from nplt_storage.facts.entries import ModelInvocationDescriptor

MARKS_MAX = 4


def mark(body: Json, marked_messages: Sequence[int]) -> None:
    """Writes them into a body that was just made."""
    stable = body.get("system") or body.get("tools")
    if stable:
        _mark_last(stable)
    for place in marked_messages:
        _mark_last(body["messages"][place]["content"])


def messages_to_mark(
    context: Sequence[ContextMessage], steps: Sequence[Step], asked: ModelInvocationDescriptor
) -> list[int]:
    places = {len(steps) - 1}
    own = _seq_of_last(context, lambda each: _is_answer_of(each, asked))
    if (answer := _place_of(own, steps, AssistantStep)) is not None:
        places.add(answer - 1)
    prompt = _seq_of_last(context, lambda each: isinstance(each, ModelInputMessage))
    if (began := _place_of(prompt, steps, UserStep)) is not None:
        places.add(began)
    return sorted(places)


def _is_answer_of(message: ContextMessage, asked: ModelInvocationDescriptor) -> bool:
    return isinstance(message, ModelOutputMessage) and message.invocation == asked


def _seq_of_last(
    context: Sequence[ContextMessage], is_meant: Callable[[ContextMessage], bool]
) -> int:
    return next((each.seq for each in reversed(context) if is_meant(each)), 0)


def _place_of(seq: int, steps: Sequence[Step], kind: type[Step]) -> int | None:
    if not seq:
        return None
    for place in range(len(steps) - 1, -1, -1):
        if isinstance(steps[place], kind) and seq in steps[place].seqs:
            return place
    return None


def _mark_last(blocks: list[Json]) -> None:
    blocks[-1]["cache_control"] = {"type": "ephemeral"}
