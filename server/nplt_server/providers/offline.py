"""`offline/echo`: answers without any model, so that everything can be tried.

It answers with the prompt itself, streamed word by word. Prompts that start
with `!` exercise the rest:

    !slow SECONDS [TEXT]   spreads the answer (TEXT, or fifty words) over that time
    !fail                  fails as a provider does
    !tool NAME JSON        calls that tool, then answers with its result
    !think TEXT            sends reasoning first

A pure function writes the script of an answer; the provider only plays it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from itertools import chain

import anyio
import anyio.lowlevel

from nplt_server.context import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.deltas import (
    ModelOutputDelta,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_server.errors import ProviderError, ProviderRefused
from nplt_server.providers.base import ModelRequest

_WORDS = re.compile(r"\s*\S+\s*")
_FIFTY_WORDS = " ".join(f"word{number}" for number in range(1, 51))
_BREATH = 64
"""Words said without looking up; then other tasks get a chance."""
_ECHO_SECONDS_MAX = 3.0
"""A book pasted into the prompt is not read back at reading speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    deltas: Iterable[ModelOutputDelta]
    """Made while they are played: a long prompt has very many words."""
    length: int
    seconds: float | None = None
    """How long playing it takes; `None`: at the provider's own speed."""


class OfflineProvider:
    """Also a reference for the port: the smallest provider there can be."""

    specification = "offline"
    models = ("echo",)

    def __init__(self, provider_id: str = "offline", *, words_per_second: float = 30.0) -> None:
        self.id = provider_id
        self._words_per_second = words_per_second

    def call_model(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelOutputDelta]]:
        return aclosing(self._play(request))

    async def aclose(self) -> None:
        pass  # it holds nothing

    async def _play(self, request: ModelRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        script = write_script(request.context)
        seconds = script.seconds if script.seconds is not None else self._usual_time(script)
        started = anyio.current_time()
        for number, delta in enumerate(script.deltas, start=1):
            yield delta
            ahead = started + seconds * number / script.length - anyio.current_time()
            if ahead > 0.002:
                await anyio.sleep(ahead)
            elif number % _BREATH == 0:
                await anyio.lowlevel.checkpoint()

    def _usual_time(self, script: Script) -> float:
        if not self._words_per_second:
            return 0.0
        return min(script.length / self._words_per_second, _ECHO_SECONDS_MAX)


def write_script(context: Sequence[ContextMessage]) -> Script:
    last = context[-1]
    heard = sum(map(_count_words, context))
    if isinstance(last, ToolResultsMessage):
        text = "\n".join(result.result for result in last.results)
        return _answer(text or "(the tool said nothing)", heard=heard)
    prompt = last.content if isinstance(last, ModelInputMessage) else ""
    command, _, rest = prompt.partition(" ")
    match command:
        case "!slow":
            seconds, text = _slow_arguments(rest)
            return _answer(text, heard=heard, seconds=seconds)
        case "!fail":
            # Not one that passes: nobody should wait and ask again.
            raise ProviderError("offline/echo fails, as it was asked to")
        case "!tool":
            name, _, arguments = rest.strip().partition(" ")
            call = ToolCallPiece(index=0, tool_name=name, arguments=arguments.strip() or "{}")
            return Script(deltas=(call, Stopped(reason="tool_calls"), _usage(heard, 1)), length=3)
        case "!think":
            return _answer(rest.strip() or "hm", heard=heard, thoughts=rest.strip() or "hm")
        case _:
            return _answer(prompt, heard=heard)


def _answer(text: str, *, heard: int, seconds: float | None = None, thoughts: str = "") -> Script:
    words = len(text.split())
    return Script(
        deltas=chain(
            (ReasoningPiece(text=word) for word in _words(thoughts)),
            (TextPiece(text=word) for word in _words(text)),
            (Stopped(reason="end"), _usage(heard, words)),
        ),
        length=len(thoughts.split()) + words + 2,
        seconds=seconds,
    )


def _words(text: str) -> Iterator[str]:
    return (match.group() for match in _WORDS.finditer(text))


def _usage(heard: int, said: int) -> UsageReport:
    return UsageReport(input_tokens=heard, output_tokens=said)


def _slow_arguments(rest: str) -> tuple[float, str]:
    number, _, text = rest.strip().partition(" ")
    try:
        seconds = float(number)
    except ValueError:
        raise ProviderRefused("!slow needs a number of seconds: !slow SECONDS [TEXT]") from None
    if not 0 <= seconds <= 86_400:
        raise ProviderRefused("!slow takes between 0 and 86400 seconds")
    return seconds, text.strip() or _FIFTY_WORDS


def _count_words(message: ContextMessage) -> int:
    match message:
        case SystemMessage():
            return len(message.instruction.split())
        case ModelInputMessage():
            return len(message.text.split())
        case ModelOutputMessage():
            return len(message.content.split()) + len(message.tool_calls)
        case ToolResultsMessage():
            return sum(len(text.split()) for text in message.texts)
