"""The user's side between two answers: results of the calls, then what was said.

It is gathered message by message and can be looked at any time. A call nobody
answered gets a result that says so; a result nobody asked for is shown as text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from nplt_server.context import ModelInputMessage, ModelOutputMessage, ToolResultsMessage
from nplt_server.providers.compiling.compiled import (
    AssistantStep,
    CompiledCall,
    CompiledImage,
    CompiledResult,
    Repair,
    UserStep,
)
from nplt_server.providers.compiling.repairs import Repairs
from nplt_server.providers.compiling.rules import VendorRules
from nplt_server.providers.compiling.texts import is_blank, sendable
from nplt_storage.facts.tool_calls import ToolCallResult

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
        return step, tuple(self._unanswered())

    def _unanswered(self) -> Iterator[Repair]:
        for call in self._calls:
            if call.call_id not in self._results:
                yield Repair(code="call_without_result", seq=self._calls_seq, detail=call.call_id)

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
