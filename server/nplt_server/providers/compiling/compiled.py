"""A context in the form every vendor can print: what is said, turn about.

Steps alternate strictly; the first and the last are the user's. Right after an
answer with calls come the results of exactly these calls, in their order, ahead of
any text. No text is blank, no id or name is one a vendor refuses, all of it can be
written as UTF-8. Where something had to be changed for that, a repair says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from nplt_storage.facts.entries import OutputPart
from nplt_storage.facts.json_values import JsonValue
from nplt_storage.facts.tool_calls import ToolStatus

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    code: RepairCode
    seq: int
    """Of the entry; 0: it has none."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCall:
    call_id: str
    tool_name: str
    arguments_json: str
    """Always an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledResult:
    call_id: str
    tool_name: str
    status: ToolStatus
    text: str
    seq: int = 0
    """The entry it is from; 0: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledImage:
    content_type: str
    data_base64: str = field(repr=False)
    seq: int = 0

    @property
    def url(self) -> str:
        """All of it, as a data URL."""
        return f"data:{self.content_type};base64,{self.data_base64}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserStep:
    """Results first, then pictures, then texts, which name them."""

    texts: tuple[str, ...] = ()
    text_seqs: tuple[int, ...] = ()
    """The entry each text is from, place by place; 0: there is none."""
    images: tuple[CompiledImage, ...] = ()
    results: tuple[CompiledResult, ...] = ()
    seqs: tuple[int, ...] = ()
    """All entries it stands for, those left out of it included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantStep:
    text: str = ""
    """Empty only where there are calls."""
    calls: tuple[CompiledCall, ...] = ()
    reasoning: str = ""
    """Only of the very model that is asked now; as `parts`."""
    parts: tuple[OutputPart, ...] = ()
    """Where there are any they cover all of text, reasoning and calls; read them with
    `blocks_of`."""
    seqs: tuple[int, ...] = ()


Step: TypeAlias = UserStep | AssistantStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    system: str
    """Empty: there is none."""
    steps: tuple[Step, ...]
    repairs: tuple[Repair, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBlock:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningBlock:
    text: str
    """May be empty: what is opaque behind it may still sign it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaqueBlock:
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
