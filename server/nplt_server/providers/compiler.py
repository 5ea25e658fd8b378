"""Compiles a context into steps every vendor accepts. Pure, and it never fails.

Steps alternate between user and assistant. A call without a result gets one; a result
without a call becomes text; sealed reasoning goes only to the model it came from. Every
change is noted as a `Repair`. What was compiled for the call before is not compiled again.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import is_
from typing import Final, Literal, TypeAlias, assert_never

import orjson
from msgspec import Struct

from nplt_protocol import JsonValue
from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.digest.text import clean_text, cut
from nplt_server.tools import ToolDescription, fitting_name, name_fits
from nplt_storage.entries import (
    ModelInvocationDescriptor,
    OutputPart,
    ToolCallRequest,
    ToolCallResult,
    ToolStatus,
)

# ------------------------------------------------------------------------------
# Compiled steps
#
# Steps alternate strictly; the first and the last are the user's. After an answer with calls
# come the results of exactly these calls, in their order, before any text. No text is blank,
# no id or name is one a vendor refuses, and all of it is valid UTF-8. Every change that was
# needed for that is listed as a repair.

RepairCode: TypeAlias = Literal[
    "arguments_repaired",  # were not a JSON object
    "call_id_mapped",  # too long, of other characters, or there already
    "call_without_result",  # got one that says so
    "cut",  # was longer than a vendor takes
    "empty_text",  # left out, or a word in its place
    "foreign_reasoning",  # of another model: left out
    "late_instruction",  # joined with the first
    "merged",  # with what the same side said before
    "placeholder",  # the user's side of a step nobody took
    "result_without_call",  # shown as text
    "surrogates",  # and NUL: what can't be written became U+FFFD
    "tool_name_mapped",  # too long or of other characters
    "unfit_reasoning",  # does not belong to what is shown: left out
]


class Repair(Struct, frozen=True, kw_only=True):
    code: RepairCode
    seq: int
    """Of the entry; 0: it has none."""
    detail: str = ""


class CompiledCall(Struct, frozen=True, kw_only=True):
    call_id: str
    tool_name: str
    arguments_json: str
    """Always an object."""


class CompiledResult(Struct, frozen=True, kw_only=True):
    call_id: str
    tool_name: str
    status: ToolStatus
    text: str
    seq: int = 0
    """The entry it is from; 0: there is none."""


class CompiledImage(Struct, frozen=True, kw_only=True):
    content_type: str
    data_base64: str
    seq: int = 0

    def __repr__(self) -> str:
        """Without the picture: a log must not repeat it."""
        return f"CompiledImage({self.content_type!r}, seq={self.seq})"

    @property
    def url(self) -> str:
        """All of it, as a data URL."""
        return f"data:{self.content_type};base64,{self.data_base64}"


class UserStep(Struct, frozen=True, kw_only=True):
    """Results first, then pictures, then texts, which name them."""

    texts: tuple[str, ...] = ()
    text_seqs: tuple[int, ...] = ()
    """The entry each text is from, place by place; 0: there is none."""
    images: tuple[CompiledImage, ...] = ()
    results: tuple[CompiledResult, ...] = ()
    seqs: tuple[int, ...] = ()
    """All entries it stands for, those left out of it included."""


class AssistantStep(Struct, frozen=True, kw_only=True):
    text: str = ""
    """Empty only where there are calls."""
    calls: tuple[CompiledCall, ...] = ()
    reasoning: str = ""
    """Only of the very model that is asked now; as `parts`."""
    parts: tuple[OutputPart, ...] = ()
    """Where there are any they cover all of text, reasoning and calls; read them with
    `blocks_of`."""
    seqs: tuple[int, ...] = ()


CompiledStep: TypeAlias = UserStep | AssistantStep


class CompiledContext(Struct, frozen=True, kw_only=True):
    system: str
    """Empty: there is none."""
    steps: tuple[CompiledStep, ...]
    repairs: tuple[Repair, ...] = ()


class TextBlock(Struct, frozen=True, kw_only=True):
    text: str


class ReasoningBlock(Struct, frozen=True, kw_only=True):
    text: str
    """May be empty: what is opaque behind it may still sign it."""


class OpaqueBlock(Struct, frozen=True, kw_only=True):
    data: Mapping[str, JsonValue]


AnswerBlock: TypeAlias = TextBlock | ReasoningBlock | OpaqueBlock | CompiledCall


def blocks_of(step: AssistantStep) -> Iterator[AnswerBlock]:
    """An answer piece by piece, as it came where that is known; else its reasoning,
    its text and its calls."""
    if not step.parts:
        if step.reasoning:
            yield ReasoningBlock(text=step.reasoning)
        if step.text:
            yield TextBlock(text=step.text)
        yield from step.calls
        return
    said = thought = 0
    for part in step.parts:
        match part.kind:
            case "text":
                yield TextBlock(text=step.text[said : said + part.size])
                said += part.size
            case "reasoning":
                yield ReasoningBlock(text=step.reasoning[thought : thought + part.size])
                thought += part.size
            case "call":
                yield step.calls[part.size]
            case "opaque":
                yield OpaqueBlock(data=part.data or {})


# ------------------------------------------------------------------------------
# Vendor rules
#
# Only what differs between vendors. The common rules always apply: ids and names of letters,
# digits, `_` and `-`; no blank text; a result for every call. The defaults are the narrowest
# that were seen.


class VendorRules(Struct, frozen=True, kw_only=True):
    call_id_characters_max: int = 40
    text_characters_max: int = 1_048_576
    """Of one text: a prompt, an answer, a result, the arguments of a call."""


class Repairs(list[Repair]):
    def note(self, code: RepairCode, seq: int, detail: str = "") -> None:
        self.append(Repair(code=code, seq=seq, detail=detail))

    def note_all(self, codes: Iterable[RepairCode], seq: int, detail: str = "") -> None:
        for code in codes:
            self.note(code, seq, detail)


# ------------------------------------------------------------------------------
# Texts and arguments: valid UTF-8, JSON, bounded

UNPARSED: Final = "_unparsed"
"""The name under which a model is shown again what it wrote instead of an object."""
_DEPTH_MAX: Final = 64


def is_blank(text: str) -> bool:
    return not text or text.isspace()


def sendable(text: str, characters_max: int) -> tuple[str, tuple[RepairCode, ...]]:
    """The text, and what had to be done to it."""
    clean = text if text.isascii() else clean_text(text)
    if "\0" in clean:  # valid JSON, and yet more than one server chokes on it
        clean = clean.replace("\0", "\ufffd")
    if len(clean) > characters_max:
        short = cut(clean, characters_max)
        return short, ("cut",) if clean is text else ("surrogates", "cut")
    return clean, () if clean is text else ("surrogates",)


def sendable_arguments(
    call: ToolCallRequest, characters_max: int
) -> tuple[str, tuple[RepairCode, ...]]:
    """Always a JSON object."""
    written, codes = (None, ()) if call.arguments is None else _as_json(call.arguments)
    if written is None:
        raw, codes = sendable(call.raw_arguments, characters_max)
        return _unparsed(raw, characters_max), ("arguments_repaired", *codes)
    if len(written) > characters_max:
        return _unparsed(written, characters_max), (*codes, "cut")
    return written, codes


def _as_json(arguments: Mapping[str, JsonValue]) -> tuple[str | None, tuple[RepairCode, ...]]:
    """`None`: that is no JSON."""
    written = _written(arguments)
    if written is not None and "\\u0000" not in written:
        return written, ()
    try:
        clean = _written(_clean(arguments, _DEPTH_MAX))
    except ValueError:
        return None, ()
    return clean, () if clean == written else ("surrogates",)


def _written(arguments: JsonValue | Mapping[str, JsonValue]) -> str | None:
    try:
        return orjson.dumps(arguments, default=_plain).decode()
    except TypeError:
        return None


def _clean(value: object, depth: int) -> JsonValue:
    if depth == 0:
        raise ValueError("nested too deeply")
    match value:
        case str():
            return sendable(value, len(value))[0]
        case Mapping():
            return {
                sendable(str(name), len(str(name)))[0]: _clean(inner, depth - 1)
                for name, inner in value.items()
            }
        case list() | tuple():
            return [_clean(inner, depth - 1) for inner in value]
        case bool() | int() | float() | None:
            return value
        case _:
            raise ValueError("no JSON")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


def _unparsed(raw: str, characters_max: int) -> str:
    whole = orjson.dumps({UNPARSED: raw}).decode()
    if len(whole) <= characters_max:
        return whole
    # Escaped, a character takes up to six.
    room = (characters_max - len(UNPARSED) - len('{"":""}')) // 6
    return orjson.dumps({UNPARSED: cut(raw, room)}).decode()


# ------------------------------------------------------------------------------
# Ids of calls and names of tools
#
# Both stay as they are if a vendor takes them. An id that is too long, has other characters
# or occurs twice becomes a digest of itself, so no two calls share one. A name keeps its
# legible part: such a tool is never offered, it was made up by a model or another program.

_ID_DIGITS: Final = 32
_TOOL_NAME_CHARACTERS_MAX: Final = 64


class CallIds:
    """Of one context, call by call in its order: what comes later changes nothing."""

    def __init__(self, rules: VendorRules) -> None:
        self._characters_max = rules.call_id_characters_max
        self._taken: set[str] = set()
        self._repeats: dict[str, int] = {}

    def take(self, own_id: str) -> str:
        call_id = own_id
        while call_id in self._taken or not name_fits(call_id, self._characters_max):
            number = self._repeats.get(own_id, 0)
            self._repeats[own_id] = number + 1
            digest = hashlib.sha256(f"{number} {own_id}".encode("utf-8", "surrogatepass"))
            call_id = f"call_{digest.hexdigest()[:_ID_DIGITS]}"[-self._characters_max :]
        self._taken.add(call_id)
        return call_id


def fitting_tool_name(name: str) -> str:
    return fitting_name(name, _TOOL_NAME_CHARACTERS_MAX)


def own_names(tools: Iterable[ToolDescription]) -> dict[str, str]:
    """What the model is told a tool is called → what it is called here."""
    return {fitting_tool_name(tool.name): tool.name for tool in tools}


# ------------------------------------------------------------------------------
# Opaque parts: sent back only to the model they came from, unchanged
#
# A signature covers everything before it. If something before an opaque part is shown
# differently, or the parts do not match this answer, none of them is sent. Reasoning at the
# very end that led to nothing is not sent either.


class FittingParts(Struct, frozen=True, kw_only=True):
    text: str
    reasoning: str
    parts: tuple[OutputPart, ...]


def fitting_parts(message: ModelOutputMessage, changed: Collection[int]) -> FittingParts | None:
    """`changed`: the places of calls that are shown differently."""
    if not _cover(message):
        return None
    kept: list[OutputPart] = []
    texts: list[str] = []
    said = 0
    is_as_it_came = True
    for part in message.parts:
        match part.kind:
            case "text":
                text = message.content[said : said + part.size]
                said += part.size
                if is_blank(text):
                    is_as_it_came = is_as_it_came and not text
                    continue
                texts.append(text)
            case "call":
                is_as_it_came = is_as_it_came and part.size not in changed
            case "reasoning" | "opaque":
                if not is_as_it_came:
                    return None
        kept.append(part)
    del kept[_end_of_thought(kept) :]
    thought = sum(part.size for part in kept if part.kind == "reasoning")
    return FittingParts(
        text="".join(texts), reasoning=message.reasoning[:thought], parts=tuple(kept)
    )


def _cover(message: ModelOutputMessage) -> bool:
    """Whether they are all of this answer, each piece once."""
    sizes = {"text": 0, "reasoning": 0}
    calls: list[int] = []
    for part in message.parts:
        match part.kind:
            case "text" | "reasoning":
                if part.size < 0:
                    return False
                sizes[part.kind] += part.size
            case "call":
                calls.append(part.size)
            case "opaque":
                try:
                    orjson.dumps(part.data)
                except TypeError:
                    return False
                if part.data is None:
                    return False
    return (
        sizes["text"] == len(message.content)
        and sizes["reasoning"] == len(message.reasoning)
        and sorted(calls) == list(range(len(message.tool_calls)))
    )


def _end_of_thought(parts: Sequence[OutputPart]) -> int:
    """Where the thoughts begin behind which nothing is said; the end, if there are none."""
    end = len(parts)
    for place in range(len(parts) - 1, -1, -1):
        match parts[place].kind:
            case "reasoning":
                end = place
            case "text" | "call":
                break
    return end


# ------------------------------------------------------------------------------
# The user's step between two answers: results, then texts
#
# Built message by message; it can be read at any time. A call without a result gets one that
# says so; a result without a call becomes text.

EMPTY_INPUT: Final = "(an empty message)"
EMPTY_RESULT: Final = "(no output)"
OUTCOME_UNKNOWN: Final = "(interrupted: whether this call had any effect is unknown)"


class UserSide:
    def __init__(self, rules: VendorRules, repairs: Repairs) -> None:
        self._characters_max = rules.text_characters_max
        self._repairs = repairs
        self._calls: tuple[CompiledCall, ...] = ()
        self._calls_seq = 0
        self._waiting: dict[str, deque[CompiledCall]] = {}
        """Calls without a result, by the id the record knows them by."""
        self._results: dict[str, CompiledResult] = {}
        self._texts: list[str] = []
        self._text_seqs: list[int] = []
        self._images: list[CompiledImage] = []
        self._seqs: list[int] = []
        self._has_blank = False

    def await_results(self, message: ModelOutputMessage, answer: AssistantStep) -> None:
        """Of the answer right before it."""
        self._calls = answer.calls
        self._calls_seq = message.seq
        for asked, call in zip(message.tool_calls, answer.calls, strict=True):
            self._waiting.setdefault(asked.tool_call_id, deque()).append(call)

    def add_input(self, message: ModelInputMessage) -> None:
        self._stands_for(message.seq)
        text, codes = sendable(message.text, self._characters_max)
        if is_blank(text):
            self._has_blank = True
            self._repairs.note("empty_text", message.seq)
            return
        if self._texts:
            self._repairs.note("merged", message.seq)
        self._repairs.note_all(codes, message.seq)
        self._say(text, message.seq)
        self._show(message)

    def _show(self, message: ModelInputMessage | ToolResultsMessage) -> None:
        self._images += [
            CompiledImage(
                content_type=image.content_type or "image/png",
                data_base64=image.data_base64 or "",
                seq=message.seq,
            )
            for image in message.images
        ]

    def add_results(self, message: ToolResultsMessage) -> None:
        self._stands_for(message.seq)
        if not message.results:
            self._repairs.note("empty_text", message.seq)
        for result, text in zip(message.results, message.texts, strict=True):
            waiting = self._waiting.get(result.tool_call_id)
            if waiting:
                self._add_result(waiting.popleft(), result, text, seq=message.seq)
            else:
                self._add_stray(result, text, seq=message.seq)
        if message.images:  # only a message of the user can hold pictures, in every API
            named = " ".join(image.as_text for image in message.images)
            self._say(sendable(f"{named} of the tools", self._characters_max)[0], message.seq)
            self._show(message)

    def _add_result(
        self, call: CompiledCall, result: ToolCallResult, text: str, *, seq: int
    ) -> None:
        text, codes = sendable(text, self._characters_max)
        if is_blank(text):
            text = EMPTY_RESULT
            self._repairs.note("empty_text", seq, call.call_id)
        else:
            self._repairs.note_all(codes, seq, call.call_id)
        self._results[call.call_id] = CompiledResult(
            call_id=call.call_id,
            tool_name=call.tool_name,
            status=result.status,
            text=text,
            seq=seq,
        )

    def _add_stray(self, result: ToolCallResult, text: str, *, seq: int) -> None:
        shown = f"[Result of a call that is not shown here: {result.tool_name}, {result.status}]"
        text, codes = sendable(
            f"{shown}\n{EMPTY_RESULT if is_blank(text) else text}", self._characters_max
        )
        self._repairs.note("result_without_call", seq, sendable(result.tool_call_id, 200)[0])
        self._repairs.note_all(codes, seq)
        self._say(text, seq)

    def step(self) -> tuple[UserStep | None, tuple[Repair, ...]]:
        """As it stands, with the repairs that closing it now takes; `None`: nothing was
        said, and nothing is waited for."""
        texts, text_seqs = tuple(self._texts), tuple(self._text_seqs)
        if not texts and not self._calls:
            if not self._has_blank:
                return None, ()
            texts, text_seqs = (EMPTY_INPUT,), tuple(self._seqs[-1:]) or (0,)
        step = UserStep(
            texts=texts,
            text_seqs=text_seqs,
            images=tuple(self._images),
            results=tuple(
                self._results.get(call.call_id) or _unknown(call) for call in self._calls
            ),
            seqs=tuple(self._seqs),
        )
        return step, tuple(
            Repair(code="call_without_result", seq=self._calls_seq, detail=call.call_id)
            for call in self._calls
            if call.call_id not in self._results
        )

    def _say(self, text: str, seq: int) -> None:
        self._texts.append(text)
        self._text_seqs.append(seq)

    def _stands_for(self, seq: int) -> None:
        if seq:
            self._seqs.append(seq)


def _unknown(call: CompiledCall) -> CompiledResult:
    return CompiledResult(
        call_id=call.call_id, tool_name=call.tool_name, status="failed", text=OUTCOME_UNKNOWN
    )


BEGINNING_NOT_SHOWN: Final = "(what came before is not shown)"
GO_ON: Final = "(go on)"


def compile_context(
    messages: Sequence[ContextMessage], *, rules: VendorRules, origin: ModelInvocationDescriptor
) -> CompiledContext:
    """For the model that is asked: `origin`, if it answered before."""
    # A slice, because some sequences are slow one by one.
    return Compilation(rules=rules, origin=origin).go_on(list(messages[:]))


class Compilation:
    def __init__(self, *, rules: VendorRules, origin: ModelInvocationDescriptor) -> None:
        self._rules = rules
        self._origin = origin
        self._ids = CallIds(rules)
        self._repairs = Repairs()
        self._messages: list[ContextMessage] = []
        self._instructions: list[str] = []
        self._steps: list[CompiledStep] = []
        self._user = UserSide(rules, self._repairs)

    def leads_to(self, messages: list[ContextMessage]) -> bool:
        """Whether they begin with those that were compiled."""
        return len(self._messages) <= len(messages) and all(map(is_, self._messages, messages))

    def go_on(self, messages: list[ContextMessage]) -> CompiledContext:
        """Of all of them; those that were compiled before are not compiled again."""
        for message in messages[len(self._messages) :]:
            match message:
                case SystemMessage():
                    self._add_instruction(message)
                case ModelInputMessage():
                    self._user.add_input(message)
                case ToolResultsMessage():
                    self._user.add_results(message)
                case ModelOutputMessage():
                    self._add_answer(message)
                case _:
                    assert_never(message)
        self._messages = messages
        return self._compiled()

    def _compiled(self) -> CompiledContext:
        last, repairs = self._user.step()
        if last is None:
            last = UserStep(texts=(GO_ON,), text_seqs=(0,))
            repairs = (Repair(code="placeholder", seq=0, detail=GO_ON),)
        system, codes = sendable("\n\n".join(self._instructions), self._rules.text_characters_max)
        repairs += tuple(Repair(code=code, seq=0) for code in codes)
        return CompiledContext(
            system=system,
            steps=(*self._steps, last),
            repairs=(*self._repairs, *repairs),
        )

    def _add_instruction(self, message: SystemMessage) -> None:
        text, codes = sendable(message.instruction, self._rules.text_characters_max)
        if is_blank(text):
            return
        if self._instructions:
            self._repairs.note("late_instruction", message.seq)
        self._repairs.note_all(codes, message.seq)
        self._instructions.append(text)

    def _add_answer(self, message: ModelOutputMessage) -> None:
        answer = self._answer(message)
        if answer is None:
            return
        asked, repairs = self._user.step()
        self._repairs.extend(repairs)
        if asked is not None:
            self._steps.append(asked)
        elif not self._steps:
            self._steps.append(UserStep(texts=(BEGINNING_NOT_SHOWN,), text_seqs=(0,)))
            self._repairs.note("placeholder", message.seq, BEGINNING_NOT_SHOWN)
        else:
            answer = self._merged(answer, message.seq)
        self._steps.append(answer)
        self._user = UserSide(self._rules, self._repairs)
        if answer.calls:
            self._user.await_results(message, answer)

    def _answer(self, message: ModelOutputMessage) -> AssistantStep | None:
        """`None`: it says nothing."""
        text, codes = sendable(message.content, self._rules.text_characters_max)
        if is_blank(text):
            text = ""
            if not message.tool_calls:
                self._repairs.note("empty_text", message.seq)
                return None
        self._repairs.note_all(codes, message.seq)
        calls, changed = self._calls(message)
        seqs = (message.seq,) if message.seq else ()
        if message.reasoning or message.parts:
            fitting = self._own_parts(message, changed=changed, is_as_said=not codes)
            if fitting is not None:
                return AssistantStep(
                    text=fitting.text if fitting.parts else text,
                    calls=calls,
                    reasoning=fitting.reasoning,
                    parts=fitting.parts,
                    seqs=seqs,
                )
        return AssistantStep(text=text, calls=calls, seqs=seqs)

    def _calls(self, message: ModelOutputMessage) -> tuple[tuple[CompiledCall, ...], set[int]]:
        """And the places of those that are shown differently."""
        calls: list[CompiledCall] = []
        changed: set[int] = set()
        for place, call in enumerate(message.tool_calls):
            own_id = call.tool_call_id
            call_id = self._ids.take(own_id)
            name = fitting_tool_name(call.tool_name)
            arguments, codes = sendable_arguments(call, self._rules.text_characters_max)
            if call_id != own_id:
                self._repairs.note("call_id_mapped", message.seq, call_id)
            if name != call.tool_name:
                self._repairs.note("tool_name_mapped", message.seq, call_id)
                changed.add(place)
            if codes:
                self._repairs.note_all(codes, message.seq, call_id)
                changed.add(place)
            calls.append(CompiledCall(call_id=call_id, tool_name=name, arguments_json=arguments))
        return tuple(calls), changed

    def _own_parts(
        self, message: ModelOutputMessage, *, changed: set[int], is_as_said: bool
    ) -> FittingParts | None:
        if message.invocation != self._origin:
            self._repairs.note("foreign_reasoning", message.seq)
            return None
        reasoning, codes = sendable(message.reasoning, self._rules.text_characters_max)
        if not message.parts:
            self._repairs.note_all(codes, message.seq, "reasoning")
            return FittingParts(text="", reasoning=reasoning, parts=())
        fitting = fitting_parts(message, changed) if is_as_said and not codes else None
        if fitting is None or fitting.reasoning != message.reasoning:
            self._repairs.note("unfit_reasoning", message.seq)
        return fitting

    def _merged(self, answer: AssistantStep, seq: int) -> AssistantStep:
        """With the answer before it, which has no calls: else it had results behind it."""
        before = self._steps.pop()
        assert isinstance(before, AssistantStep)
        self._repairs.note("merged", seq)
        if before.reasoning or before.parts or answer.reasoning or answer.parts:
            self._repairs.note("unfit_reasoning", seq)
        text, codes = sendable(
            "\n\n".join(filter(None, (before.text, answer.text))), self._rules.text_characters_max
        )
        self._repairs.note_all(codes, seq)
        return AssistantStep(text=text, calls=answer.calls, seqs=before.seqs + answer.seqs)


# ------------------------------------------------------------------------------
# Incremental compilation
#
# A call's context begins with the previous call's, message object by message object.
# Compilations are kept and continued; their steps are the same objects, so that renderers can
# cache by identity. A context that does not begin like a kept one is compiled whole.

_Key: TypeAlias = tuple[int, ModelInvocationDescriptor]


class ContextCompiler:
    """Of one provider, for all conversations. It keeps what was said alive until
    `contexts_max` other contexts have been compiled."""

    def __init__(self, rules: VendorRules, *, contexts_max: int = 16) -> None:
        self._rules = rules
        self._contexts_max = contexts_max
        self._kept: dict[_Key, Compilation] = {}
        """Least recently used first."""

    def compile(
        self, messages: Sequence[ContextMessage], *, origin: ModelInvocationDescriptor
    ) -> CompiledContext:
        """The same as `compile_context`."""
        now = list(messages[:])
        # Kept messages are alive: as long as a key is there, no other object has its id.
        key = (id(now[0]) if now else 0, origin)
        kept = self._kept.pop(key, None)
        if kept is None or not kept.leads_to(now):
            kept = Compilation(rules=self._rules, origin=origin)
        compiled = kept.go_on(now)
        self._kept[key] = kept
        if len(self._kept) > self._contexts_max:
            del self._kept[next(iter(self._kept))]
        return compiled
