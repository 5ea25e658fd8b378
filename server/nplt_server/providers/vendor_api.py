"""The format of a vendor's API: how a request is rendered and its answer parsed. No I/O.

`openai` and `anthropic` implement `VendorApi` and `AnswerParser`; `client` sends what they
render.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar, Self

from msgspec import Struct, field, structs

from nplt_protocol import JsonObject, JsonValue
from nplt_server.errors import ProviderError, ProviderRefused
from nplt_server.providers import (
    LlmRequest,
    ModelOutputDelta,
    OpaquePiece,
    Patience,
    Stopped,
    UsageReport,
)
from nplt_server.providers.compiler import (
    AssistantStep,
    CompiledCall,
    CompiledContext,
    CompiledStep,
    VendorRules,
)
from nplt_server.providers.failures import VendorError, failure_in_stream, unreadable
from nplt_server.providers.sse import json_object_of
from nplt_server.request_form import RequestForm


class RenderedRequest(Struct, frozen=True, kw_only=True):
    body: dict[str, Any]
    seqs: tuple[tuple[int, ...], ...]
    """The entries that each message (or item) of the body shows."""
    block_seqs: tuple[tuple[int, ...], ...] = ()
    """The entry of each block of each message of the user, or 0, where refusals name blocks."""
    own_names: Mapping[str, str] = field(default_factory=dict)
    """Our names of tools, by the names that are sent."""
    betas: tuple[str, ...] = ()

    @property
    def kind(self) -> tuple[str, tuple[str, ...]]:
        """Requests of the same kind have the same address and headers."""
        return ("responses" if "input" in self.body else "messages", self.betas)


_IDS = ("id", "call_id", "tool_call_id")
_ID = re.compile(r"(?=[\w-]*\d)[\w-]{8,}")
"""A whole id. What is shorter or has no digit is as likely a word of the vendor's own."""


def with_entries(
    refusal: ProviderRefused, words: str, rendered: RenderedRequest
) -> ProviderRefused:
    """The refusal with the entries it is about. A refusal names a message (and a block of it) by
    its place, or an item or a call by its id, in the vendor's `words`."""
    index, block = refusal.message_index, refusal.block_index
    if index is None and (refusal.content_refused or refusal.cause_unclear):
        index = _place_by_id(words, rendered)
    if index is None or index >= len(rendered.seqs):
        return refusal
    seqs = rendered.seqs[index]
    blocks = rendered.block_seqs[index] if rendered.block_seqs else ()
    if block is not None and block < len(blocks) and blocks[block]:
        seqs = (blocks[block],)
    return replace(refusal, message_index=index, entry_seqs=seqs)


def _place_by_id(words: str, rendered: RenderedRequest) -> int | None:
    messages = rendered.body.get("input") or rendered.body["messages"]
    vendor_error = set(_ID.findall(words))
    places = (
        n for n, message in enumerate(messages) if not vendor_error.isdisjoint(_ids_of(message))
    )
    return next(places, None)


def _ids_of(message: JsonObject) -> list[JsonValue]:
    nested: Any = message.get("tool_calls") or ()
    ids = [message[name] for name in _IDS if message.get(name)]
    return [*ids, *(each for call in nested for each in _ids_of(call))]


def sent_call_ids(steps: Sequence[CompiledStep], vendor_id: re.Pattern[str]) -> dict[str, str]:
    """The ids of calls as they are sent, by those of the compiled steps: the same, or the vendor's
    own where its answer kept them and the model that made them is asked. A vendor's id that
    occurs twice, or does not match `vendor_id`, is not used."""
    answers = [step for step in steps if isinstance(step, AssistantStep)]
    ids = {call.call_id: call.call_id for step in answers for call in step.calls}
    taken = set(ids)
    for step in answers:
        opaque = (block.data for block in step.blocks if isinstance(block, OpaquePiece))
        listed = (told for data in opaque if isinstance(told := data.get("call_ids"), list))
        calls = (block for block in step.blocks if isinstance(block, CompiledCall))
        for call, own_id in zip(calls, chain.from_iterable(listed), strict=False):
            if isinstance(own_id, str) and own_id not in taken and vendor_id.fullmatch(own_id):
                taken.add(own_id)
                ids[call.call_id] = own_id
    return ids


class AnswerParser(ABC):
    """Turns events into deltas. Raises a `ProviderError` if they can't be an answer."""

    def __init__(self, own_names: Mapping[str, str] | None = None) -> None:
        """`own_names`: our names of tools by those that were sent."""
        self._own_names = own_names or {}
        self.has_spoken = False
        """A piece of the answer has come: from now on the request can't be sent again."""
        self.is_thinking = False
        """The model is thinking and sends nothing: a long pause is no bad sign."""
        self._has_thought = False
        self.is_done = False
        """The answer is complete; whatever follows is not read."""

    def deadline(self, patience: Patience, *, began: float, now: float) -> float:
        """The time at which the answer counts as stalled. Pings before the first piece do not
        put it off. Whenever the model begins to think, it has as long again as for the first
        piece."""
        if self.is_thinking:
            self._has_thought = True
            return now + patience.first_token_seconds
        if self._has_thought or self.has_spoken:
            return now + patience.gap_seconds
        return began + patience.first_token_seconds

    def feed(self, data: bytes) -> list[ModelOutputDelta]:
        try:
            deltas = list(self._read(json_object_of(data)))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise unreadable(before_first_token=not self.has_spoken) from None
        if not self.has_spoken:
            self.has_spoken = not all(isinstance(each, UsageReport | Stopped) for each in deltas)
        return deltas

    def feed_whole(self, body: bytes) -> list[ModelOutputDelta]:
        """Reads the whole answer of a server that does not stream, although it is asked to."""
        try:
            answer = json_object_of(body)
            if answer.get("error"):
                raise self._failure(answer)
            return list(self._read_whole(answer))
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            raise unreadable(before_first_token=True) from None

    def _failure(self, event: JsonObject) -> ProviderError:
        vendor_error = VendorError.of(event)
        return failure_in_stream(vendor_error, before_first_token=not self.has_spoken)

    @abstractmethod
    def _read(self, event: JsonObject) -> Iterable[ModelOutputDelta]: ...

    @abstractmethod
    def _read_whole(self, answer: Any) -> Iterable[ModelOutputDelta]: ...


class VendorApi(Struct, frozen=True, kw_only=True):
    """The format of one vendor API, in one form: renders requests and parses streams."""

    specification: ClassVar[str]
    rules: ClassVar[VendorRules] = VendorRules()
    form: RequestForm = RequestForm()

    def render(self, request: LlmRequest, compiled: CompiledContext) -> RenderedRequest:
        raise NotImplementedError

    def parser(self, rendered: RenderedRequest) -> AnswerParser:
        raise NotImplementedError

    def may_prefill(self, model: str) -> bool:
        """Whether the vendor documents that this model goes on with an answer that is the last
        message of the request."""
        return False

    def takes_prefill(self, rendered: RenderedRequest) -> bool:
        """Whether the other fields of the request allow that."""
        return True

    def is_needed_by(self, model: str) -> bool:
        """Whether the model is called through this API where the server has another one too."""
        return False

    def in_form(self, form: RequestForm) -> Self:
        return structs.replace(self, form=form)

    def other_reasoning(self, model: str) -> RequestForm | None:
        """The change for a server that wants its reasoning back, or does not take it; `None`:
        this API has one way only."""
        return None


def without_fields(body: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The body without these fields. `strict` stands in tools and schemas."""
    plain = {name: value for name, value in body.items() if name not in names}
    return _without_strict(plain) if "strict" in names else plain


def _without_strict(body: dict[str, Any]) -> dict[str, Any]:
    def strip(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: strip(each) for name, each in value.items() if name != "strict"}

    changed: dict[str, Any] = {
        name: strip(body[name]) for name in ("response_format", "text") if name in body
    }
    if "tools" in body:
        changed["tools"] = [strip(tool) for tool in body["tools"]]
    return body | changed
