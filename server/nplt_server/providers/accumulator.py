"""Merges deltas into one `ModelOutputEntry`, the same for every provider.

Parses the arguments of tool calls and keeps the raw text. Gives the output so far, for
clients that attach during an answer. No clock and no I/O; ids are passed in.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, assert_never

import orjson
from msgspec import Struct, field, structs

from nplt_protocol import ErrorCode, JsonObject, JsonValue
from nplt_server.digest.text import clean_text
from nplt_server.errors import AnswerRejected
from nplt_server.providers import (
    ModelOutputDelta,
    OpaquePiece,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_storage.entries import (
    ModelInvocationDescriptor,
    ModelOutputEntry,
    OutputPart,
    PartKind,
    SentContext,
    ToolCallRequest,
)
from nplt_storage.errors import BadEntry
from nplt_storage.json_values import DEPTH_MAX, check_object

# ------------------------------------------------------------------------------
# Parsing tool calls
#
# Models stream arguments as text, which may be incomplete or not JSON.

_ARGUMENTS_DEPTH_MAX: Final = 32
_REASON_CHARACTERS_MAX: Final = 40
_CHECKED_CHARACTERS_MAX: Final = 100_000
"""Longer arguments are not looked through for keys that stand twice."""


def parse_tool_call(tool_call_id: str, tool_name: str, raw_arguments: str) -> ToolCallRequest:
    """Always keeps the raw text. A parse error is returned to the model as the result; what
    could be read only in part is noted as a warning."""
    call = ToolCallRequest(
        tool_call_id=tool_call_id,
        tool_name=tool_name,
        raw_arguments=raw_arguments,
        arguments=None,
    )
    try:
        parsed, warning = orjson.loads(raw_arguments or "{}"), _repeated_key(raw_arguments)
    except orjson.JSONDecodeError as error:
        return structs.replace(call, parse_error=f"the arguments are not valid JSON: {error}")
    if isinstance(parsed, str):
        with suppress(orjson.JSONDecodeError):
            parsed = orjson.loads(parsed)
            warning = "the arguments were JSON inside of a JSON text"
    if not isinstance(parsed, dict):
        return structs.replace(call, parse_error="the arguments are not a JSON object")
    try:
        check_object(parsed, "a call", depth=DEPTH_MAX - _ARGUMENTS_DEPTH_MAX)
    except BadEntry:
        why = "the arguments are nested too deeply or hold a number too large"
        return structs.replace(call, parse_error=why)
    return structs.replace(call, arguments=parsed, parse_warning=warning)


def _repeated_key(raw_arguments: str) -> str | None:
    """Finds a key that occurs twice. A parser takes its last value without an error."""
    if len(raw_arguments) > _CHECKED_CHARACTERS_MAX:
        return None
    repeated: list[str] = []

    def note(pairs: list[tuple[str, JsonValue]]) -> None:
        keys = Counter(key for key, _ in pairs)
        repeated.extend(key for key, count in keys.items() if count > 1)

    try:
        json.loads(raw_arguments or "{}", object_pairs_hook=note)
    except (ValueError, RecursionError):
        return None
    if not repeated:
        return None
    key = repeated[0][:_REASON_CHARACTERS_MAX]
    return f"the key {key!r} occurs more than once; the last value counts"


WHOLE: Final = ("end", "tool_calls")
"""Stop reasons of a complete output."""
_TOKENS_MAX = 2**53 - 1
_TOOL_CALL_BYTES = 256
"""Counted for each tool call besides its name and arguments: its id, and a result, which is
written even if the call is not run."""


class _PartialToolCall(Struct):
    tool_name: str = ""
    arguments: list[str] = field(default_factory=list)


class _Part(Struct):
    kind: PartKind
    size: int = 0
    data: JsonObject | None = None


class ModelOutputAccumulator:
    def __init__(self, *, answer_bytes_max: int) -> None:
        self._answer_bytes_max = answer_bytes_max
        self._answer_bytes = 0
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _PartialToolCall] = {}
        self._parts: list[_Part] = []
        self._is_verbatim = True
        self.text_length = 0
        self.usage: UsageReport | None = None
        self.stop_reason: str | None = None

    def apply(self, delta: ModelOutputDelta) -> None:
        match delta:
            case TextPiece(text=text):
                self._add_to_parts("text", text)
                self._text.append(text)
                self.text_length += len(text)
            case ReasoningPiece(text=text):
                self._add_to_parts("reasoning", text)
                self._reasoning.append(text)
            case ToolCallPiece():
                self._count(delta.tool_name)
                self._count(delta.arguments)
                if delta.index not in self._calls:
                    self._count_bytes(_TOOL_CALL_BYTES)
                    self._parts.append(_Part(kind="call", size=delta.index))
                call = self._calls.setdefault(delta.index, _PartialToolCall())
                call.tool_name += delta.tool_name
                call.arguments.append(delta.arguments)
            case OpaquePiece(data=data):
                self._parts.append(_Part(kind="opaque", data=self._kept(dict(data))))
            case UsageReport():
                self.usage = delta.in_range(_TOKENS_MAX)  # odd counts do not make an answer fail
            case Stopped(reason=reason):
                self.stop_reason = reason
            case _:
                assert_never(delta)

    @property
    def text(self) -> str:
        self._text = ["".join(self._text)]  # joined once, however often it is asked for
        return self._text[0]

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def has_begun(self) -> bool:
        """Whether there is any output, including reasoning."""
        return bool(self._parts)

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    def add_usage(self, before: UsageReport | None) -> None:
        """Adds what earlier requests of the same call took."""
        if before is None:
            return
        if self.usage is None:
            self.usage = before
            return
        now, then = self.usage, before
        self.usage = UsageReport(
            input_tokens=now.input_tokens + then.input_tokens,
            output_tokens=now.output_tokens + then.output_tokens,
            cached_tokens=now.cached_tokens + then.cached_tokens,
            cache_write_tokens=now.cache_write_tokens + then.cache_write_tokens,
            estimated=now.estimated or then.estimated,
            raw=now.raw,
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is neither text nor a tool call."""
        return not self._calls and not self.text.strip()

    def entry(
        self,
        *,
        turn_id: str,
        call: int,
        invocation: ModelInvocationDescriptor,
        sent: SentContext | None = None,
        new_call_id: Callable[[], str] | None = None,
    ) -> ModelOutputEntry:
        """Makes the entry. `new_call_id` is missing for an answer that was cut off: its tool calls
        are left out, because they will not be run."""
        return ModelOutputEntry(
            turn_id=turn_id,
            call=call,
            state="completed",
            content=self.text,
            reasoning=self.reasoning,
            tool_calls=() if new_call_id is None else self._tool_calls(new_call_id),
            invocation=invocation,
            parts=() if new_call_id is None else self._parts_in_order(),
            stop_reason=self.stop_reason,
            sent=sent,
            usage=usage_as_json(self.usage),
        )

    def _tool_calls(self, new_call_id: Callable[[], str]) -> tuple[ToolCallRequest, ...]:
        # Tool calls that may be incomplete: the last one if the output reached its length
        # limit, all of them if it was stopped for another reason.
        cut: Collection[int] = () if self.stop_reason in WHOLE else [*self._calls]
        if self.stop_reason == "length":
            cut = [*self._calls][-1:]
        reason = (self.stop_reason or "")[:_REASON_CHARACTERS_MAX]
        why = f"not run: the answer ended ({reason}) before the call was known to be whole"
        calls: list[ToolCallRequest] = []
        for index, built in sorted(self._calls.items()):
            call = parse_tool_call(new_call_id(), built.tool_name, "".join(built.arguments))
            if index in cut:  # not to be run; the model is given the reason
                call = structs.replace(call, arguments=None, parse_error=why)
            calls.append(call)
        return tuple(calls)

    def _kept(self, data: JsonObject) -> JsonObject:
        """If one opaque part can't be stored, all opaque parts are dropped: the provider
        accepts only the complete sequence."""
        try:
            check_object(data, "an opaque piece")
        except BadEntry:
            self._is_verbatim = False
            return {}
        self._count_bytes(len(orjson.dumps(data)))
        return data

    def _add_to_parts(self, kind: PartKind, text: str) -> None:
        """Merges consecutive pieces of one kind into one part. Raises before adding."""
        self._count(text)
        if not self._parts or self._parts[-1].kind != kind:
            self._parts.append(_Part(kind=kind))
        self._parts[-1].size += len(text)

    def _parts_in_order(self) -> tuple[OutputPart, ...]:
        if not self._is_verbatim or not any(part.kind == "opaque" for part in self._parts):
            return ()
        places = {index: place for place, index in enumerate(sorted(self._calls))}
        return tuple(
            OutputPart(
                kind=part.kind,
                size=places[part.size] if part.kind == "call" else part.size,
                data=part.data,
            )
            for part in self._parts
        )

    def _count(self, text: str) -> None:
        self._count_bytes(len(text) if text.isascii() else len(text.encode(errors="replace")))

    def _count_bytes(self, size: int) -> None:
        self._answer_bytes += size
        if self._answer_bytes > self._answer_bytes_max:
            raise AnswerRejected(
                ErrorCode.TOO_LARGE,
                f"the answer is longer than {self._answer_bytes_max:,} bytes; "
                "ask for a shorter one",
            )


def cleaned(delta: ModelOutputDelta) -> ModelOutputDelta:
    """The delta with text that can be stored, for example without lone surrogates."""
    match delta:
        case TextPiece() | ReasoningPiece():
            if delta.text.isascii():
                return delta
            text = clean_text(delta.text)
            return delta if text is delta.text else structs.replace(delta, text=text)
        case ToolCallPiece():
            return structs.replace(
                delta,
                tool_name=clean_text(delta.tool_name),
                arguments=clean_text(delta.arguments),
            )
        case Stopped() if not delta.reason.isascii():
            return structs.replace(delta, reason=clean_text(delta.reason))
        case _:
            return delta


def usage_as_json(usage: UsageReport | None) -> JsonObject | None:
    """The usage of a call as its entry holds it. `raw`, the vendor's own object, is left out if
    it is larger than any that vendors send."""
    if usage is None:
        return None
    counts: JsonObject = {**usage.as_json()}
    if usage.estimated:
        counts["estimated"] = True
    if usage.raw:
        counts["total_tokens"] = usage.input_tokens + usage.output_tokens
        if len(raw := orjson.dumps(usage.raw, default=str)) <= _RAW_USAGE_BYTES_MAX:
            counts["raw"] = orjson.loads(raw)
    return counts


_RAW_USAGE_BYTES_MAX: Final = 2_048
