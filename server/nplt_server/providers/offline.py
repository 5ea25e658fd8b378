"""Providers that need no vendor: `offline/echo`, and models that are Python functions.

`offline/echo` answers with the prompt itself, streamed word by word, so that everything can
be tried. Prompts that start with `!` exercise the rest:

    !slow SECONDS [TEXT]   spreads the answer (TEXT, or fifty words) over that time
    !fail                  fails as a provider does
    !tool NAME JSON        calls that tool, then answers with its result
    !think TEXT            sends reasoning first

With a schema it answers with the prompt if that is JSON, else with a value that fits the
schema as well as can be told from its words, with the prompt as its texts.

A pure function writes the script of an answer; the provider streams it.
"""

from __future__ import annotations

import re
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from contextlib import aclosing, suppress
from inspect import isawaitable
from itertools import chain
from typing import Any, ClassVar, TypeAlias, cast

import anyio
import anyio.lowlevel
import orjson
from msgspec import Struct

from nplt_protocol import JsonObject, JsonValue
from nplt_protocol.json_text import answer_value
from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.errors import ConfigurationError, ProviderError, ProviderRefused
from nplt_server.providers import (
    DeltaStream,
    LlmRequest,
    ModelOutputDelta,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_server.providers.schemas import referred_to
from nplt_server.settings import load_named

_WORDS = re.compile(r"\s*\S+\s*")
_FIFTY_WORDS = " ".join(f"word{number}" for number in range(1, 51))
_CHECKPOINT_EVERY = 64
"""Words between two checkpoints, at which other tasks can run."""
_BLANKS_MARKED = bytes(b" x"[not chr(code).isspace()] for code in range(256))
_COUNTING_SECONDS_MAX = 0.002
"""Spent on counting words between two checkpoints."""
_CONTEXTS_KNOWN_MAX = 64
"""Each keeps two messages in memory, which may have megabytes; 64 turns run at once."""
_SAMPLE_LEVELS_MAX = 16
_ECHO_SECONDS_MAX = 3.0
"""A longer echo is sent faster, so that no echo takes longer than this."""


class Script(Struct, frozen=True, kw_only=True):
    deltas: Iterable[ModelOutputDelta]
    """Made while they are played: a long prompt has very many words."""
    length: int
    seconds: float | None = None
    """How long playing it takes; `None`: at the provider's own speed."""


class _StreamingProvider:
    specification: ClassVar[str]

    def call_model(self, request: LlmRequest) -> DeltaStream:
        return aclosing(self._stream(request))

    async def aclose(self) -> None:
        pass  # it holds nothing

    def specification_of(self, model: str) -> str:
        return self.specification

    def _stream(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        raise NotImplementedError


class OfflineProvider(_StreamingProvider):
    """Echoes the prompt. It is also the smallest example of a provider."""

    models = ("echo",)
    specification = "offline"

    def __init__(self, provider_id: str = "offline", *, words_per_second: float = 30.0) -> None:
        self.id = provider_id
        self._words_per_second = words_per_second
        self._words = WordCounts()

    async def _stream(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        context_tokens = await self._words.of(request.context)
        script = write_script(request.context, context_tokens=context_tokens, schema=request.schema)
        seconds = script.seconds
        if seconds is None:
            rate = self._words_per_second
            seconds = min(script.length / rate, _ECHO_SECONDS_MAX) if rate else 0.0
        started = time.monotonic() if seconds else 0.0
        for number, delta in enumerate(script.deltas, start=1):
            yield delta
            ahead = 0.0
            if seconds:
                ahead = started + seconds * number / script.length - time.monotonic()
            if ahead > 0.002:
                await anyio.sleep(ahead)
            elif number % _CHECKPOINT_EVERY == 0:
                await anyio.lowlevel.checkpoint()


def write_script(
    context: Sequence[ContextMessage], *, context_tokens: int, schema: JsonObject | None = None
) -> Script:
    last, thoughts, seconds = context[-1], "", None
    if isinstance(last, ToolResultsMessage):
        output = "\n".join(result.result for result in last.results)
        text = _by_schema(schema, output or "(the tool said nothing)", context)
    else:
        prompt = last.content if isinstance(last, ModelInputMessage) else ""
        command, _, rest = prompt.partition(" ")
        match command:
            case "!slow":
                seconds, text = _slow_arguments(rest)
            case "!fail":
                # Not one that passes: nobody should wait and ask again.
                raise ProviderError("offline/echo fails, as it was asked to")
            case "!tool":
                name, _, arguments = rest.strip().partition(" ")
                call = ToolCallPiece(index=0, tool_name=name, arguments=arguments.strip() or "{}")
                usage = UsageReport(input_tokens=context_tokens, output_tokens=1)
                return Script(deltas=(call, Stopped(reason="tool_calls"), usage), length=3)
            case "!think":
                text = thoughts = rest.strip() or "hm"
            case _:
                text = _by_schema(schema, prompt, context)
    words = _count(text)
    return Script(
        deltas=chain(
            (ReasoningPiece(text=found[0]) for found in _WORDS.finditer(thoughts)),
            (TextPiece(text=found[0]) for found in _WORDS.finditer(text)),
            (Stopped(reason="end"), UsageReport(input_tokens=context_tokens, output_tokens=words)),
        ),
        length=_count(thoughts) + words + 2,
        seconds=seconds,
    )


def _by_schema(schema: JsonObject | None, text: str, context: Sequence[ContextMessage]) -> str:
    if schema is None:
        return text
    prompts = [each for each in context if isinstance(each, ModelInputMessage) and each.schema]
    if prompts and isinstance(context[-1], ModelInputMessage) and context[-1] is not prompts[-1]:
        text = f"{prompts[-1].content} (mended)"  # that did not fit, or was no JSON
    with suppress(ValueError):
        answer_value(text)
        return text
    return orjson.dumps(_sample(schema, schema, text, _SAMPLE_LEVELS_MAX)).decode()


def _sample(schema: Any, root: JsonObject, text: str, levels: int) -> JsonValue:
    """A value for the schema; `None` where it is too deep, or says nothing."""
    if not isinstance(schema, dict) or not levels:
        return None
    for word in ("const", "default"):
        if word in schema:
            return cast(JsonValue, schema[word])
    if "$ref" in schema:
        return _sample(referred_to(root, schema["$ref"]), root, text, levels - 1)
    for word in ("enum", "anyOf", "oneOf", "allOf"):
        if choices := schema.get(word):
            first: JsonValue = choices[0]
            return first if word == "enum" else _sample(first, root, text, levels - 1)
    kind = schema.get("type", "object" if "properties" in schema else None)
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            properties = schema.get("properties", {})
            names = [*properties, *(n for n in schema.get("required", ()) if n not in properties)]
            return {n: _sample(properties.get(n), root, text, levels - 1) for n in names}
        case "array":
            item = _sample(schema.get("items"), root, text, levels - 1)
            return [item] * schema.get("minItems", 1)
        case "string":
            return text.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]
        case "integer" | "number":
            least: JsonValue = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
            return least
        case "boolean":
            return False
        case _:
            return None


def _slow_arguments(rest: str) -> tuple[float, str]:
    number, _, text = rest.strip().partition(" ")
    try:
        seconds = float(number)
    except ValueError:
        raise ProviderRefused("!slow needs a number of seconds: !slow SECONDS [TEXT]") from None
    if not 0 <= seconds <= 86_400:
        raise ProviderRefused("!slow takes between 0 and 86400 seconds")
    return seconds, text.strip() or _FIFTY_WORDS


class WordCounts:
    """Counts the words of contexts. A context that has only grown since the call before is
    counted from where it was then; every call is shown the whole conversation again."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ContextMessage, ContextMessage, int, int]] = {}
        """The first and the last message of each context, their number, and their words."""

    async def of(self, context: Sequence[ContextMessage]) -> int:
        first, last, length, words = self._known.pop(id(context[0]), (None, None, 0, 0))
        is_grown = first is context[0] and len(context) >= length and context[length - 1] is last
        if not is_grown:
            length = words = 0
        until = time.monotonic() + _COUNTING_SECONDS_MAX
        for message in context[length:]:
            words += _count_words(message)
            if time.monotonic() > until:
                await anyio.lowlevel.checkpoint()
                until = time.monotonic() + _COUNTING_SECONDS_MAX
        self._known[id(context[0])] = (context[0], context[-1], len(context), words)
        while len(self._known) > _CONTEXTS_KNOWN_MAX:
            del self._known[next(iter(self._known))]
        return words


def _count_words(message: ContextMessage) -> int:
    match message:
        case SystemMessage():
            return _count(message.instruction)
        case ModelInputMessage():
            return _count(message.text)
        case ModelOutputMessage():
            return _count(message.content) + len(message.tool_calls)
        case ToolResultsMessage():
            return sum(map(_count, message.texts))


def _count(text: str) -> int:
    """Counts as many words as `split` finds, in a tenth of its time for a long text."""
    if not text.isascii():
        return len(text.split())
    marked = text.encode().translate(_BLANKS_MARKED)
    return marked.count(b" x") + marked.startswith(b"x")


# ------------------------------------------------------------------------------
# Models that are Python functions
#
# The function gets the request and returns a text, or yields pieces (async or not), or is a
# coroutine that returns either. An answer of plain texts is complete when it ends; one of
# deltas must end with `Stopped`. A function that is not async runs on the event loop and is
# meant to be quick.


Piece: TypeAlias = str | ModelOutputDelta
Said: TypeAlias = str | Iterable[Piece] | AsyncIterable[Piece]
ModelFunction: TypeAlias = Callable[[LlmRequest], Said | Awaitable[Said]]


class ScriptedProvider(_StreamingProvider):
    specification = "python"

    def __init__(
        self,
        function: ModelFunction,
        *,
        provider_id: str = "scripted",
        models: tuple[str, ...] = ("model",),
    ) -> None:
        self.id = provider_id
        self.models = models
        self._function = function

    async def _stream(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        output = self._function(request)
        if not isinstance(output, str) and isawaitable(output):
            output = await output
        if isinstance(output, str):
            yield TextPiece(text=output)
            yield Stopped(reason="end")
            return
        speaks_in_deltas = False
        async with aclosing(_pieces(output)) as pieces:
            async for piece in pieces:
                if isinstance(piece, str):
                    yield TextPiece(text=piece)
                else:
                    speaks_in_deltas = True
                    yield piece
        if not speaks_in_deltas:
            yield Stopped(reason="end")


async def _pieces(output: Iterable[Piece] | AsyncIterable[Piece]) -> AsyncGenerator[Piece, None]:
    if isinstance(output, AsyncIterable):
        async for piece in output:
            yield piece
        return
    for piece in output:
        yield piece
        await anyio.lowlevel.checkpoint()


def load_function(name: str) -> ModelFunction:
    """`package.module:function`; a mistake is the operator's to mend."""
    found = load_named(name, "providers")
    if not callable(found):
        raise ConfigurationError([f"providers: {name!r} is not a function"])
    return cast(ModelFunction, found)
