"""The format of a vendor's API: how a request is rendered and its answer parsed. No I/O.

`openai` and `anthropic` implement `VendorApi` and `AnswerParser`; `client` sends what they
render.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import is_
from typing import Any, ClassVar, Final, Literal, Self, TypeVar

import orjson
from msgspec import Struct, field, structs

from nplt_protocol import JsonObject, JsonValue
from nplt_server.context.messages import Beginning
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
from nplt_server.providers.failures import failure_in_stream, unreadable
from nplt_server.providers.sse import json_object_of
from nplt_server.providers.vendor_errors import VendorError
from nplt_server.request_form import RequestForm
from nplt_server.tools import ToolDescription

_Rendered = TypeVar("_Rendered")
_PIECE_STEPS: Final = 32


class RenderedStep(Struct, frozen=True, kw_only=True):
    """The messages (or items) that a step of the context becomes."""

    messages: tuple[bytes, ...]
    seqs: tuple[tuple[int, ...], ...]
    """The entries that each message shows."""
    block_seqs: tuple[tuple[int, ...], ...] = ()
    """The entry of each block of each message of the user, or 0, where refusals name blocks."""


class RenderedRequest(Struct, frozen=True, kw_only=True):
    fields: dict[str, Any]
    """The fields of the body, without the list of messages."""
    list_name: Literal["messages", "input"] = "messages"
    messages: Sequence[bytes]
    """The list in pieces: each is a message, or several with commas between them."""
    steps: Sequence[RenderedStep] = ()
    """The steps of which that is made."""
    messages_before: int = 0
    """How many messages are before those of the steps: an instruction."""
    own_names: Mapping[str, str] = field(default_factory=dict)
    """Our names of tools, by the names that are sent."""
    betas: tuple[str, ...] = ()
    repeats: str = ""
    """A text with which the answer begins because the server sends it back."""

    @property
    def kind(self) -> tuple[str, tuple[str, ...]]:
        """Requests of the same kind have the same address and headers."""
        return self.list_name, self.betas

    @property
    def data(self) -> bytes:
        """The body as it is sent."""
        return as_json({**self.fields, self.list_name: [*map(orjson.Fragment, self.messages)]})

    @property
    def body(self) -> dict[str, Any]:
        """The body as values: for refusals, because making it takes a while."""
        body: dict[str, Any] = orjson.loads(self.data)
        return body

    @property
    def seqs(self) -> tuple[tuple[int, ...], ...]:
        """The entries that each message of the body shows."""
        before: tuple[tuple[int, ...], ...] = ((),) * self.messages_before
        return (*before, *chain.from_iterable(step.seqs for step in self.steps))

    @property
    def block_seqs(self) -> tuple[tuple[int, ...], ...]:
        return tuple(chain.from_iterable(step.block_seqs for step in self.steps))

    def with_fields(self, fields: Mapping[str, Any]) -> RenderedRequest:
        added = {name: fields[name] for name in fields if name != self.list_name}
        return structs.replace(self, fields=self.fields | added) if added else self


def as_json(value: object) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        if isinstance(value, dict):
            fields = {name: orjson.Fragment(as_json(each)) for name, each in value.items()}
            return orjson.dumps(fields, option=orjson.OPT_NON_STR_KEYS)
        # An integer of the settings that is longer than 64 bits.
        return json.dumps(value).encode()


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
    messages = rendered.body[rendered.list_name]
    named_ids = set(_ID.findall(words))
    places = (n for n, message in enumerate(messages) if not named_ids.isdisjoint(_ids_of(message)))
    return next(places, None)


def _ids_of(message: JsonObject) -> list[JsonValue]:
    nested: Any = message.get("tool_calls") or ()
    ids = [message[name] for name in _IDS if message.get(name)]
    return [*ids, *(each for call in nested for each in _ids_of(call))]


class Rendering:
    """The steps of one context as JSON. It grows with the context: a step that was rendered for
    an earlier call is not rendered again.

    Calls have the ids of the compiled steps, or the vendor's own where its answer kept them and the
    model that made them is asked. A vendor's id that occurs twice, or does not match the pattern
    of its ids, is not used."""

    def __init__(self) -> None:
        self._made_for: object = None
        self._steps: Sequence[CompiledStep] = ()
        """The compiled steps, of which all but the last one are rendered."""
        self._rendered: list[RenderedStep] = []
        self._pieces: list[bytes] = []
        """The messages of so many steps each, joined: few long pieces are quick to send."""
        self.call_ids: dict[str, str] = {}
        """The ids of calls as they are sent, by those of the compiled steps."""
        self._vendor_ids: set[str] = set()
        """The values in `call_ids` that are the vendor's own."""
        self.item_ids: set[str] = set()
        """Other ids of the vendor that are in the request already."""
        self._tools: tuple[tuple[ToolDescription, ...], Any] | None = None

    def extend(
        self,
        steps: Sequence[CompiledStep],
        render: Callable[[CompiledStep], RenderedStep],
        *,
        made_for: object,
        vendor_id: re.Pattern[str] | None = None,
    ) -> Sequence[RenderedStep]:
        """All steps, rendered. `made_for`: what `render` depends on besides."""
        known = len(self._rendered)
        is_same = made_for == self._made_for and self._leads_to(steps)
        if not is_same or self._contradicts(steps[known:]):
            known, self._made_for = 0, made_for
            self._rendered, self._pieces = [], []
            self.call_ids, self._vendor_ids, self.item_ids = {}, set(), set()
            self._tools = None
        self._steps, new = steps, steps[known:]
        self._add_call_ids(new, vendor_id)
        self._rendered += map(render, new[:-1])
        while len(self._rendered) >= (len(self._pieces) + 1) * _PIECE_STEPS:
            first = len(self._pieces) * _PIECE_STEPS
            settled = self._rendered[first : first + _PIECE_STEPS]
            self._pieces.append(b",".join(message for step in settled for message in step.messages))
        return Beginning(self._rendered, len(self._rendered), tuple(map(render, new[-1:])))

    def messages(
        self, steps: Sequence[RenderedStep], instead: Mapping[int, RenderedStep] = {}
    ) -> list[bytes]:
        """The messages of the rendered steps, in pieces. `instead`: steps that are rendered
        otherwise in this request, by their places."""
        messages: list[bytes] = []
        changed = {place // _PIECE_STEPS for place in instead}
        for number, piece in enumerate(self._pieces):
            if number in changed:
                first = number * _PIECE_STEPS
                for place in range(first, first + _PIECE_STEPS):
                    messages += instead.get(place, steps[place]).messages
            elif piece:
                messages.append(piece)
        first = len(self._pieces) * _PIECE_STEPS
        rest = list(steps[first:])
        for place in instead:
            if place >= first:
                rest[place - first] = instead[place]
        return messages + [message for step in rest for message in step.messages]

    def tools(
        self, tools: tuple[ToolDescription, ...], render: Callable[[], _Rendered]
    ) -> _Rendered:
        """Calls `render` once, as long as the tools are the same, and returns its result."""
        if self._tools is None or self._tools[0] is not tools:
            self._tools = (tools, render())
        rendered: _Rendered = self._tools[1]
        return rendered

    def _leads_to(self, steps: Sequence[CompiledStep]) -> bool:
        """Whether they begin with those that are rendered."""
        if isinstance(steps, Beginning) and steps.continues(self._steps):
            return True
        known = len(self._rendered)
        return known < len(steps) and all(map(is_, self._steps[:known], steps))

    def _contradicts(self, new: Sequence[CompiledStep]) -> bool:
        """Whether a new call has an id that an earlier one is sent with."""
        if not self._vendor_ids:
            return False
        answers = (step for step in new if isinstance(step, AssistantStep))
        return any(call.call_id in self._vendor_ids for step in answers for call in step.calls)

    def _add_call_ids(self, new: Sequence[CompiledStep], vendor_id: re.Pattern[str] | None) -> None:
        answers = [step for step in new if isinstance(step, AssistantStep) and step.calls]
        self.call_ids |= {call.call_id: call.call_id for step in answers for call in step.calls}
        if vendor_id is None:
            return
        for step in answers:
            opaque = (block.data for block in step.blocks if isinstance(block, OpaquePiece))
            listed = (told for data in opaque if isinstance(told := data.get("call_ids"), list))
            calls = (block for block in step.blocks if isinstance(block, CompiledCall))
            for call, own_id in zip(calls, chain.from_iterable(listed), strict=False):
                if not isinstance(own_id, str) or vendor_id.fullmatch(own_id) is None:
                    continue
                if own_id not in self.call_ids and own_id not in self._vendor_ids:
                    self._vendor_ids.add(own_id)
                    self.call_ids[call.call_id] = own_id


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

    def render(
        self, request: LlmRequest, compiled: CompiledContext, rendering: Rendering | None = None
    ) -> RenderedRequest:
        """`rendering`: of the context as it was at an earlier call."""
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
    """The body without these fields. `strict` is in tools and schemas."""
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
