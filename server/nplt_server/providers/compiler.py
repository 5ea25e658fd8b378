"""Compiles a context into steps every vendor accepts. Pure, and it never fails.

Steps alternate between user and assistant. A call without a result gets one; a result
without a call becomes text; sealed reasoning goes only to the model it came from. For a model
that takes no tools, calls and results become text of the user's side: on the model's own side
they would be imitated. What was compiled for the call before is not compiled again.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import is_
from string import ascii_letters, digits
from typing import Final, TypeAlias

import orjson
from msgspec import Struct
from msgspec.structs import replace

from nplt_protocol import JsonValue
from nplt_server.context.messages import (
    Beginning,
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.digest.text import clean_text, cut
from nplt_server.providers import OpaquePiece, ReasoningPiece, TextPiece
from nplt_server.request_form import CallIds, RequestForm
from nplt_server.tools import ToolDescription, fitting_name, name_fits
from nplt_storage.entries import (
    ModelInvocationDescriptor,
    ToolCallRequest,
    ToolExecutionStatus,
)

# ------------------------------------------------------------------------------
# Compiled steps
#
# Steps alternate strictly; the first and the last are the user's. After an answer with calls
# come the results of exactly these calls, in their order, before any text. No text is blank,
# no id or name is one a vendor refuses, and all of it is valid UTF-8.


class CompiledCall(Struct, frozen=True, kw_only=True):
    call_id: str
    tool_name: str
    arguments_json: str
    """Always an object."""


class CompiledResult(Struct, frozen=True, kw_only=True):
    call_id: str
    status: ToolExecutionStatus
    text: str
    seq: int = 0
    """The entry it is from; 0: there is none."""


class CompiledImage(Struct, frozen=True, kw_only=True):
    content_type: str
    data_base64: str
    seq: int = 0

    def __repr__(self) -> str:
        """Leaves the picture out, which a log must not repeat."""
        return f"CompiledImage({self.content_type!r}, seq={self.seq})"

    @property
    def url(self) -> str:
        """All of it, as a data URL."""
        return f"data:{self.content_type};base64,{self.data_base64}"


class CompiledDocument(CompiledImage, frozen=True, kw_only=True):
    """A PDF, for vendors that read it themselves."""

    name: str

    def __repr__(self) -> str:
        return f"CompiledDocument({self.name!r}, seq={self.seq})"


class UserStep(Struct, frozen=True, kw_only=True):
    """Results first, then documents and pictures, then texts, which name them."""

    texts: tuple[str, ...] = ()
    text_seqs: tuple[int, ...] = ()
    """The entry each text is from, place by place; 0: there is none."""
    images: tuple[CompiledImage, ...] = ()
    documents: tuple[CompiledDocument, ...] = ()
    results: tuple[CompiledResult, ...] = ()
    seqs: tuple[int, ...] = ()
    """All entries it stands for, those left out of it included."""


AnswerBlock: TypeAlias = TextPiece | ReasoningPiece | OpaquePiece | CompiledCall


class AssistantStep(Struct, frozen=True, kw_only=True):
    blocks: tuple[AnswerBlock, ...]
    """The blocks in the order in which they came, if that is known; otherwise reasoning, text and
    calls. Reasoning and opaque blocks are kept only for the model that made them. A reasoning
    block may be empty, because an opaque block after it may sign it."""
    calls: tuple[CompiledCall, ...] = ()
    seqs: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """Empty only where there are calls."""
        return "".join(block.text for block in self.blocks if isinstance(block, TextPiece))

    @property
    def reasoning(self) -> str:
        return "".join(block.text for block in self.blocks if isinstance(block, ReasoningPiece))


CompiledStep: TypeAlias = UserStep | AssistantStep


class CompiledContext(Struct, frozen=True, kw_only=True):
    system: str
    """Empty: there is none."""
    steps: Sequence[CompiledStep]
    """All but the last one are the same objects at the next call."""


class VendorRules(Struct, frozen=True, kw_only=True):
    """The limits that differ between vendors; the defaults are the narrowest that were seen."""

    call_id_characters_max: int = 40
    call_ids: CallIds | None = None
    """Ids of another kind that the server takes and no others."""
    calls_as_text: bool = False
    """Calls and their results are written as text."""
    text_characters_max: int = 1_048_576
    """The longest single text: a prompt, an answer, a result, the arguments of a call."""

    def takes_call_id(self, call_id: str) -> bool:
        if self.call_ids is not None:
            return _NINE.fullmatch(call_id) is not None
        return name_fits(call_id, self.call_id_characters_max)

    def call_id_for(self, own_id: str, number: int) -> str:
        """An id that the server takes, always the same for the same `own_id` and `number`."""
        digest = hashlib.sha256(f"{number} {own_id}".encode("utf-8", "surrogatepass"))
        if self.call_ids is None:
            return f"call_{digest.hexdigest()[:_ID_DIGITS]}"[-self.call_id_characters_max :]
        rest, characters = int.from_bytes(digest.digest()[:_NINE_BYTES]), ""
        for _ in range(_NINE_CHARACTERS):
            rest, place = divmod(rest, len(_ALPHANUMERIC))
            characters += _ALPHANUMERIC[place]
        return characters


_ID_DIGITS: Final = 32
_ALPHANUMERIC: Final = ascii_letters + digits
_NINE_CHARACTERS: Final = 9
_NINE: Final = re.compile(r"[a-zA-Z0-9]{9}")
_NINE_BYTES: Final = 16
"""Bytes of a digest that nine characters are made of: more than they can hold."""


# ------------------------------------------------------------------------------
# Texts, arguments and names: valid UTF-8, JSON, bounded

UNPARSED: Final = "_unparsed"
"""The name under which a model is shown again what it wrote instead of an object."""
_DEPTH_MAX: Final = 64
_TOOL_NAME_CHARACTERS_MAX: Final = 64


def sendable(text: str, characters_max: int) -> str:
    clean = text if text.isascii() else clean_text(text)
    if "\0" in clean:  # valid JSON, and yet more than one server chokes on it
        clean = clean.replace("\0", "\ufffd")
    return cut(clean, characters_max)


def sendable_arguments(call: ToolCallRequest, characters_max: int) -> tuple[str, bool]:
    """Always a JSON object; and whether it is what the model wrote."""
    written = clean = None if call.arguments is None else _written(call.arguments)
    if call.arguments is not None and (written is None or "\\u0000" in written):
        clean = _written(call.arguments, is_clean=False)
    if clean is None:
        return _unparsed(sendable(call.raw_arguments, characters_max), characters_max), False
    if len(clean) > characters_max:
        return _unparsed(clean, characters_max), False
    return clean, clean == written


def _written(arguments: Mapping[str, JsonValue], *, is_clean: bool = True) -> str | None:
    """`None`: that is no JSON."""
    try:
        arguments_sent = arguments if is_clean else _cleaned(arguments, _DEPTH_MAX)
        return orjson.dumps(arguments_sent, default=dict).decode()  # they may be any mapping
    except (TypeError, ValueError):
        return None


def _cleaned(value: object, depth: int) -> JsonValue:
    if depth == 0:
        raise ValueError("nested too deeply")
    match value:
        case str():
            return sendable(value, len(value))
        case Mapping():
            return {
                sendable(str(name), len(str(name))): _cleaned(inner, depth - 1)
                for name, inner in value.items()
            }
        case list() | tuple():
            return [_cleaned(inner, depth - 1) for inner in value]
        case bool() | int() | float() | None:
            return value
        case _:
            raise ValueError("no JSON")


def _unparsed(raw: str, characters_max: int) -> str:
    whole = orjson.dumps({UNPARSED: raw}).decode()
    if len(whole) <= characters_max:
        return whole
    # Escaped, a character takes up to six.
    room = (characters_max - len(UNPARSED) - len('{"":""}')) // 6
    return orjson.dumps({UNPARSED: cut(raw, room)}).decode()


def fitting_tool_name(name: str) -> str:
    """The name itself if vendors take it. One that they don't keeps its legible part: such a
    tool is never offered, it was made up by a model or another program."""
    return fitting_name(name, _TOOL_NAME_CHARACTERS_MAX)


def own_names(tools: Iterable[ToolDescription]) -> dict[str, str]:
    """Maps the names of tools that a model is sent to our own names."""
    return {fitting_tool_name(tool.name): tool.name for tool in tools}


# ------------------------------------------------------------------------------
# Opaque parts: sent back only to the model they came from, unchanged
#
# A signature covers everything before it. If something before an opaque part is shown
# differently, or the parts do not match this answer, none of them is sent. Reasoning at the
# very end that led to nothing is not sent either.


def fitting_blocks(
    message: ModelOutputMessage, calls: Sequence[CompiledCall], changed: Collection[int]
) -> list[AnswerBlock]:
    """Empty: they can't be sent. `changed`: the places of calls that are shown differently."""
    if not _cover(message):
        return []
    blocks: list[AnswerBlock] = []
    text_sent = thought = 0
    is_as_it_came = True
    for part in message.parts:
        if part.kind in ("reasoning", "opaque") and not is_as_it_came:
            return []
        match part.kind:
            case "text":
                text = message.content[text_sent : text_sent + part.size]
                text_sent += part.size
                if text.strip():
                    blocks.append(TextPiece(text=text))
                elif text:
                    is_as_it_came = False
            case "call":
                is_as_it_came = is_as_it_came and part.size not in changed
                blocks.append(calls[part.size])
            case "reasoning":
                text = message.reasoning[thought : thought + part.size]
                thought += part.size
                blocks.append(ReasoningPiece(text=text))
            case "opaque":
                blocks.append(OpaquePiece(data=part.data or {}))
    spoken = [n for n, block in enumerate(blocks) if isinstance(block, TextPiece | CompiledCall)]
    for place in range(spoken[-1] + 1 if spoken else 0, len(blocks)):
        if isinstance(blocks[place], ReasoningPiece):
            return blocks[:place]
    return blocks


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
                if part.data is None or _written(part.data) is None:
                    return False
    return (
        sizes["text"] == len(message.content)
        and sizes["reasoning"] == len(message.reasoning)
        and sorted(calls) == list(range(len(message.tool_calls)))
    )


# ------------------------------------------------------------------------------
# One context for one model
#
# What the user's side says between two answers becomes a step when the next answer comes, or
# the context ends.

_BEGINNING_NOT_SHOWN: Final = UserStep(texts=("(what came before is not shown)",), text_seqs=(0,))
_GO_ON: Final = UserStep(texts=("(go on)",), text_seqs=(0,))
_EMPTY_INPUT: Final = "(an empty message)"
_EMPTY_RESULT: Final = "(no output)"
_OUTCOME_UNKNOWN: Final = "(interrupted: whether this call had any effect is unknown)"
_CALLED: Final = "[The tool {name} was called with {arguments}. Result, {status}:]\n{text}"


class Compilation:
    def __init__(self, *, rules: VendorRules, origin: ModelInvocationDescriptor) -> None:
        self._rules = rules
        self._characters_max = rules.text_characters_max
        self._origin = origin
        self._messages: Sequence[ContextMessage] = ()
        self._instructions: list[str] = []
        self._steps: list[CompiledStep] = []
        self._call_ids: set[str] = set()
        self._repeats: dict[str, int] = {}
        self._asked: list[tuple[str, CompiledCall]] = []
        """The calls of the last answer, with the ids the record knows them by."""
        self._inputs: list[ModelInputMessage | ToolResultsMessage] = []
        """Since the last answer."""
        self._calls_as_text: dict[str, ToolCallRequest] = {}
        """Calls that are written as text, by id, until their results come."""

    @property
    def messages_compiled(self) -> int:
        return len(self._messages)

    def leads_to(self, messages: Sequence[ContextMessage]) -> bool:
        """Whether they begin with those that were compiled."""
        if isinstance(messages, Beginning) and messages.continues(self._messages):
            return True
        return len(self._messages) <= len(messages) and all(map(is_, self._messages, messages))

    def go_on(self, messages: Sequence[ContextMessage]) -> CompiledContext:
        """Compiles all messages; those that were compiled before are not compiled again."""
        for message in messages[len(self._messages) :]:
            match message:
                case SystemMessage():
                    instruction = self._sendable(message.instruction)
                    if instruction.strip():
                        self._instructions.append(instruction)
                case ModelOutputMessage() if self._rules.calls_as_text and message.tool_calls:
                    plain = replace(message, tool_calls=(), parts=(), reasoning="")
                    self._add_answer(plain)
                    self._calls_as_text |= {each.tool_call_id: each for each in message.tool_calls}
                case ModelOutputMessage():
                    self._add_answer(message)
                case _:
                    self._inputs.append(message)
        self._messages = messages
        return CompiledContext(
            system=self._sendable("\n\n".join(self._instructions)),
            steps=Beginning(self._steps, len(self._steps), (self._user_step() or _GO_ON,)),
        )

    def _sendable(self, text: str) -> str:
        return sendable(text, self._characters_max)

    def _user_step(self) -> UserStep | None:
        """Returns `None` if there is neither text nor a call to answer."""
        waiting: dict[str, deque[CompiledCall]] = {}
        for own_id, call in self._asked:
            waiting.setdefault(own_id, deque()).append(call)
        results = {
            call.call_id: CompiledResult(
                call_id=call.call_id, status="failed", text=_OUTCOME_UNKNOWN
            )
            for _, call in self._asked
        }
        texts: list[tuple[str, int]] = []
        images: list[CompiledImage] = []
        documents: list[CompiledDocument] = []
        for message in self._inputs:
            if isinstance(message, ModelInputMessage):
                text = self._sendable(message.text)
                if not text.strip():
                    continue
                texts.append((text, message.seq))
            else:
                texts += self._add_results(message, waiting, results)
            images += [
                CompiledImage(
                    content_type=image.content_type or "image/png",
                    data_base64=image.data_base64 or "",
                    seq=message.seq,
                )
                for image in message.images
            ]
            if isinstance(message, ModelInputMessage):
                documents += [
                    CompiledDocument(
                        name=self._sendable(document.name),
                        content_type="application/pdf",
                        data_base64=document.pdf_base64 or "",
                        seq=message.seq,
                    )
                    for document in message.documents
                ]
        seqs = tuple(message.seq for message in self._inputs if message.seq)
        if not texts and not results:
            if not any(isinstance(message, ModelInputMessage) for message in self._inputs):
                return None
            texts = [(_EMPTY_INPUT, seqs[-1] if seqs else 0)]
        return UserStep(
            texts=tuple(text for text, _ in texts),
            text_seqs=tuple(seq for _, seq in texts),
            images=tuple(images),
            documents=tuple(documents),
            results=tuple(results.values()),
            seqs=seqs,
        )

    def _add_results(
        self,
        message: ToolResultsMessage,
        waiting: Mapping[str, deque[CompiledCall]],
        results: dict[str, CompiledResult],
    ) -> Iterator[tuple[str, int]]:
        """Gives what of it can only be shown as text, with its entry: results without a call,
        and the names of pictures, which only a message of the user can hold, in every API."""
        for result, arguments_sent in zip(message.results, message.texts, strict=True):
            text = arguments_sent if arguments_sent.strip() else _EMPTY_RESULT
            if calls := waiting.get(result.tool_call_id):
                call_id = calls.popleft().call_id
                results[call_id] = CompiledResult(
                    call_id=call_id,
                    status=result.status,
                    text=self._sendable(text),
                    seq=message.seq,
                )
            elif (call := self._calls_as_text.get(result.tool_call_id)) is not None:
                arguments, _ = sendable_arguments(call, self._characters_max)
                named = {"name": call.tool_name, "arguments": arguments, "status": result.status}
                yield self._sendable(_CALLED.format(**named, text=text)), message.seq
            else:
                what = f"{result.tool_name}, {result.status}"
                stray = f"[Result of a call that is not shown here: {what}]\n{text}"
                yield self._sendable(stray), message.seq
        if message.images:
            pictures = " ".join(image.as_text for image in message.images)
            yield self._sendable(f"{pictures} of the tools"), message.seq

    def _add_answer(self, message: ModelOutputMessage) -> None:
        text = self._sendable(message.content)
        if not text.strip() and not message.tool_calls:
            return  # it says nothing
        user_step = self._user_step()
        self._inputs = []
        answer = self._answer(message, text)
        if user_step is not None:
            self._steps.append(user_step)
        elif not self._steps:
            self._steps.append(_BEGINNING_NOT_SHOWN)
        else:
            # One with the answer before it, which has no calls: else it had results behind it.
            before = self._steps[-1]
            self._steps = self._steps[:-1]  # another list: earlier contexts have this one
            assert isinstance(before, AssistantStep)
            both = self._sendable("\n\n".join(filter(None, (before.text, answer.text))))
            answer = AssistantStep(
                blocks=(TextPiece(text=both), *answer.calls),
                calls=answer.calls,
                seqs=before.seqs + answer.seqs,
            )
        self._steps.append(answer)

    def _answer(self, message: ModelOutputMessage, text: str) -> AssistantStep:
        calls: list[CompiledCall] = []
        changed: set[int] = set()
        for place, call in enumerate(message.tool_calls):
            name = fitting_tool_name(call.tool_name)
            arguments, is_as_written = sendable_arguments(call, self._characters_max)
            if name != call.tool_name or not is_as_written:
                changed.add(place)
            call_id = self._new_call_id(call.tool_call_id)
            calls.append(CompiledCall(call_id=call_id, tool_name=name, arguments_json=arguments))
        own_ids = (call.tool_call_id for call in message.tool_calls)
        self._asked = list(zip(own_ids, calls, strict=True))
        blocks: list[AnswerBlock] = [TextPiece(text=text), *calls] if text.strip() else [*calls]
        if self._is_own(message):
            reasoning = self._sendable(message.reasoning)
            if message.parts:
                if (text, reasoning) == (message.content, message.reasoning):
                    blocks = fitting_blocks(message, calls, changed) or blocks
            elif reasoning:
                blocks.insert(0, ReasoningPiece(text=reasoning))
        seqs = (message.seq,) if message.seq else ()
        return AssistantStep(blocks=tuple(blocks), calls=tuple(calls), seqs=seqs)

    def _is_own(self, message: ModelOutputMessage) -> bool:
        """Whether the model that is asked gave this answer."""
        return message.invocation == self._origin

    def _new_call_id(self, own_id: str) -> str:
        """The record's, if the vendor takes it. One that is too long, has other characters or
        occurs twice becomes a digest of itself, so no two calls share one. What comes later
        changes nothing."""
        call_id = own_id
        while call_id in self._call_ids or not self._rules.takes_call_id(call_id):
            number = self._repeats.get(own_id, 0)
            self._repeats[own_id] = number + 1
            call_id = self._rules.call_id_for(own_id, number)
        self._call_ids.add(call_id)
        return call_id


# ------------------------------------------------------------------------------
# Incremental compilation
#
# A call's context begins with the previous call's, message object by message object. The last
# compilation is kept and continued; its steps are the same objects, so that renderers can tell
# them. A context that does not begin like it is compiled whole.


_USUAL_FORM: Final = RequestForm()


class ContextCompiler:
    """Compiles one context, which grows from call to call."""

    def __init__(self, rules: VendorRules) -> None:
        self._rules = rules
        self._key: tuple[ModelInvocationDescriptor, VendorRules] | None = None
        self._compilation: Compilation | None = None

    def new_characters(self, messages: Sequence[ContextMessage]) -> int:
        """About how many characters of the messages have not been compiled."""
        known = 0 if self._compilation is None else self._compilation.messages_compiled
        return sum(map(_characters_of, messages[known:]))

    def compile(
        self,
        messages: Sequence[ContextMessage],
        *,
        origin: ModelInvocationDescriptor,
        form: RequestForm = _USUAL_FORM,
    ) -> CompiledContext:
        """Compiles the context for the model `origin`."""
        rules = self._rules
        if form.call_ids is not None or form.writes_calls_as_text:
            rules = replace(rules, call_ids=form.call_ids, calls_as_text=form.writes_calls_as_text)
        if not isinstance(messages, Beginning):
            messages = tuple(messages)
        compilation = self._compilation
        if (
            compilation is None
            or self._key != (origin, rules)
            or not compilation.leads_to(messages)
        ):
            compilation = Compilation(rules=rules, origin=origin)
        self._key, self._compilation = (origin, rules), compilation
        return compilation.go_on(messages)


_MESSAGE_CHARACTERS: Final = 100
"""Counted for each message besides its texts."""


def _characters_of(message: ContextMessage) -> int:
    match message:
        case ModelInputMessage():
            texts = len(message.text) + sum(
                len(each.pdf_base64 or "") for each in message.documents
            )
            images = message.images
        case ToolResultsMessage():
            texts, images = sum(map(len, message.texts)), message.images
        case ModelOutputMessage():
            arguments = sum(len(call.raw_arguments) for call in message.tool_calls)
            texts, images = len(message.content) + len(message.reasoning) + arguments, ()
        case SystemMessage():
            texts, images = len(message.instruction), ()
    return _MESSAGE_CHARACTERS + texts + sum(len(each.data_base64 or "") for each in images)
