"""Contexts to compile: short ways to write one, and every absurd one there is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from hypothesis import strategies as st

from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_storage.entries import (
    ModelInvocationDescriptor,
    ModelOutputEntry,
    OutputPart,
    ToolCallRequest,
    ToolCallResult,
    ToolExecutionStatus,
)
from nplt_storage.json_values import JsonValue

OWN: Final = ModelInvocationDescriptor(provider="p", specification="s", model="own")
OTHER: Final = ModelInvocationDescriptor(provider="p", specification="s", model="other")
_NOON: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)


def asks(text: str, seq: int = 0) -> ModelInputMessage:
    return ModelInputMessage(content=text, seq=seq)


def says(text: str = "", *calls: ToolCallRequest, seq: int = 0) -> ModelOutputMessage:
    return ModelOutputMessage(content=text, tool_calls=calls, invocation=OWN, seq=seq)


def message_of(entry: ModelOutputEntry, seq: int) -> ModelOutputMessage:
    """As the model that made it is shown it in its next call."""
    return ModelOutputMessage(
        content=entry.content,
        tool_calls=entry.tool_calls,
        invocation=entry.invocation,
        reasoning=entry.reasoning if entry.parts else "",
        parts=entry.parts,
        seq=seq,
    )


def call(
    call_id: str,
    name: str = "look",
    arguments: dict[str, JsonValue] | None = None,
    *,
    raw: str | None = None,
) -> ToolCallRequest:
    """With raw text alone it is one that could not be parsed."""
    return ToolCallRequest(
        tool_call_id=call_id,
        tool_name=name,
        raw_arguments="{}" if raw is None else raw,
        arguments=(arguments or {}) if raw is None else None,
    )


def gives(*results: ToolCallResult, seq: int = 0) -> ToolResultsMessage:
    return ToolResultsMessage(results=results, seq=seq)


def result(
    call_id: str, text: str = "seen", status: ToolExecutionStatus = "success"
) -> ToolCallResult:
    return ToolCallResult(
        tool_call_id=call_id,
        tool_name="look",
        status=status,
        result=text,
        duration=0.0,
        timestamp=_NOON,
    )


def thought(
    size: int, *parts: OutputPart, data: dict[str, JsonValue] | None = None
) -> tuple[OutputPart, ...]:
    """Signed reasoning, and what came after it."""
    sealed = OutputPart(kind="opaque", data=data or {"signature": "sealed"})
    return (OutputPart(kind="reasoning", size=size), sealed, *parts)


def _nested(depth: int) -> JsonValue:
    value: JsonValue = None
    for _ in range(depth):
        value = [value]
    return value


texts = st.sampled_from(
    ["hello", "", "two words", " \n", "\ud83d", "a\0b", "\0", "é…\u200d", "x" * 300, " " * 300]
)
call_ids = st.sampled_from(["a", "b", "c-1", "", "no way", "日本", "\ud800", "y" * 41, "call_"])
tool_names = st.sampled_from(["look", "", "not allowed", "z" * 65, "\ud800", "ü"])
_ARGUMENTS: Final[list[dict[str, JsonValue] | None]] = [
    None,
    {},
    {"path": "x", "deep": {"er": [1, 2.5, None, True]}},
    {"nul": ["a\0b"], "\\u0000": 1},
    {"half": {"\ud83d": "\ud83d"}},
    {"infinite": float("inf"), "large": 2**70},
    {"long": "\x01" * 250},
    {"bottomless": _nested(300)},
]
_calls = st.builds(
    ToolCallRequest,
    tool_call_id=call_ids,
    tool_name=tool_names,
    raw_arguments=texts,
    arguments=st.sampled_from(_ARGUMENTS),
)
_results = st.builds(
    ToolCallResult,
    tool_call_id=call_ids,
    tool_name=tool_names,
    status=st.sampled_from(["success", "failed", "skipped"]),
    result=texts,
    duration=st.just(0.0),
    timestamp=st.just(_NOON),
)
_seqs = st.integers(0, 99)


@st.composite
def _answers(draw: st.DrawFn) -> ModelOutputMessage:
    text, reasoning = draw(texts), draw(texts)
    calls = tuple(draw(st.lists(_calls, max_size=3)))
    pieces = [
        OutputPart(kind="reasoning", size=len(reasoning)),
        OutputPart(
            kind="opaque", data=draw(st.sampled_from([{"signature": "s"}, {"bad": "\ud800"}]))
        ),
        OutputPart(kind="text", size=len(text) // 2),
        OutputPart(kind="text", size=len(text) - len(text) // 2),
        *(OutputPart(kind="call", size=place) for place in range(len(calls))),
    ]
    match draw(st.sampled_from(["none", "as it came", "in any order", "not its own"])):
        case "none":
            pieces = []
        case "in any order":
            pieces = draw(st.permutations(pieces))
        case "not its own":
            pieces = draw(st.lists(st.sampled_from(pieces), max_size=4))
    return ModelOutputMessage(
        content=text,
        tool_calls=calls,
        invocation=draw(st.sampled_from([OWN, OTHER, None])),
        reasoning=reasoning,
        parts=tuple(pieces),
        seq=draw(_seqs),
    )


_absurd: st.SearchStrategy[ContextMessage] = st.one_of(
    st.builds(SystemMessage, instruction=texts, seq=_seqs),
    st.builds(ModelInputMessage, content=texts, live_screen=st.none() | texts, seq=_seqs),
    st.builds(
        ToolResultsMessage,
        results=st.lists(_results, max_size=3).map(tuple),
        live_screen=st.none() | texts,
        seq=_seqs,
    ),
    _answers(),
)


@st.composite
def _exchanges(draw: st.DrawFn) -> list[ContextMessage]:
    """A prompt, calls and nearly all of their results: what goes wrong in real life."""
    answer = draw(_answers())
    ids = [each.tool_call_id for each in answer.tool_calls]
    given = [result(each, draw(texts)) for each in ids if draw(st.integers(0, 4))]
    return [asks(draw(texts)), answer, gives(*given, seq=draw(_seqs))]


contexts: st.SearchStrategy[list[ContextMessage]] = st.lists(
    _absurd.map(lambda message: [message]) | _exchanges(), max_size=6
).map(lambda stretches: [message for stretch in stretches for message in stretch])
