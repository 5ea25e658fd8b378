"""The format of a vendor's API: how a request is rendered and its answer parsed. No I/O.

`openai` and `anthropic` implement `VendorApi` and `AnswerParser`; `client` sends what they
render.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from msgspec import Struct, field

from nplt_protocol import JsonObject, JsonValue
from nplt_server.errors import ProviderError, ProviderRefused, RequestForm
from nplt_server.providers import (
    LlmRequest,
    ModelOutputDelta,
    Patience,
    Stopped,
    UsageReport,
)
from nplt_server.providers.compiler import CompiledContext, VendorRules
from nplt_server.providers.failures import VendorError, failure_in_stream, unreadable
from nplt_server.providers.sse import json_object_of


class RenderedRequest(Struct, frozen=True, kw_only=True):
    body: dict[str, Any]
    seqs: tuple[tuple[int, ...], ...]
    """The entries that each message (or item) of the body shows."""
    block_seqs: tuple[tuple[int, ...], ...] = ()
    """The entry of each block of each message of the user, or 0, where refusals name blocks."""
    own_names: Mapping[str, str] = field(default_factory=dict)
    """Our names of tools, by the names that are sent."""
    betas: tuple[str, ...] = ()


_IDS = ("id", "call_id", "tool_call_id")
_ID = re.compile(r"(?=[\w-]*\d)[\w-]{8,}")
"""A whole id. What is shorter or has no digit is as likely a word of the vendor's own."""


def with_entries(
    refusal: ProviderRefused, words: str, rendered: RenderedRequest
) -> ProviderRefused:
    """The refusal with the entries it is about. A refusal names a message (and a block of it) by
    its place, or an item or a call by its id, in the vendor's `words`."""
    index, block = refusal.message_index, refusal.block_index
    if index is None and refusal.content_refused:
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
    """The format of one vendor API: renders requests and parses streams."""

    specification: ClassVar[str]
    rules: ClassVar[VendorRules] = VendorRules()

    def render(self, request: LlmRequest, compiled: CompiledContext) -> RenderedRequest:
        raise NotImplementedError

    def parser(self, rendered: RenderedRequest) -> AnswerParser:
        raise NotImplementedError

    def is_needed_by(self, model: str) -> bool:
        """Whether the model is called through this API where the server has another one too."""
        return False

    def in_form(self, form: RequestForm) -> VendorApi:
        """This API as the form wants it, where servers differ in it."""
        return self

    def instead(self, refusal: ProviderRefused, model: str) -> RequestForm | None:
        """The form of this API that the server wants, as its refusal tells, if it has more than
        one."""
        return None
