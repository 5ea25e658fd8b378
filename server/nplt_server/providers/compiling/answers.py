"""One model's answer as a step. Reasoning goes only to the model it came from."""

from __future__ import annotations

from dataclasses import dataclass

from nplt_server.context import ModelOutputMessage
from nplt_server.providers.compiling.compiled import AssistantStep, CompiledCall
from nplt_server.providers.compiling.names import CallIds, fitting_tool_name
from nplt_server.providers.compiling.parts import FittingParts, fitting_parts
from nplt_server.providers.compiling.repairs import Repairs
from nplt_server.providers.compiling.rules import VendorRules
from nplt_server.providers.compiling.texts import is_blank, sendable, sendable_arguments
from nplt_storage.facts.entries import ModelInvocationDescriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCompiler:
    rules: VendorRules
    origin: ModelInvocationDescriptor
    ids: CallIds
    repairs: Repairs

    def step(self, message: ModelOutputMessage) -> AssistantStep | None:
        """`None`: it says nothing."""
        text, codes = sendable(message.content, self.rules.text_characters_max)
        if is_blank(text):
            text = ""
            if not message.tool_calls:
                self.repairs.note("empty_text", message.seq)
                return None
        self.repairs.note_all(codes, message.seq)
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
            call_id = self.ids.take(own_id)
            name = fitting_tool_name(call.tool_name, self.rules)
            arguments, codes = sendable_arguments(call, self.rules.text_characters_max)
            if call_id != own_id:
                self.repairs.note("call_id_mapped", message.seq, call_id)
            if name != call.tool_name:
                self.repairs.note("tool_name_mapped", message.seq, call_id)
                changed.add(place)
            if codes:
                self.repairs.note_all(codes, message.seq, call_id)
                changed.add(place)
            calls.append(CompiledCall(call_id=call_id, tool_name=name, arguments_json=arguments))
        return tuple(calls), changed

    def _own_parts(
        self, message: ModelOutputMessage, *, changed: set[int], is_as_said: bool
    ) -> FittingParts | None:
        if message.invocation != self.origin:
            self.repairs.note("foreign_reasoning", message.seq)
            return None
        reasoning, codes = sendable(message.reasoning, self.rules.text_characters_max)
        if not message.parts:
            self.repairs.note_all(codes, message.seq, "reasoning")
            return FittingParts(text="", reasoning=reasoning, parts=())
        fitting = fitting_parts(message, changed) if is_as_said and not codes else None
        if fitting is None or fitting.reasoning != message.reasoning:
            self.repairs.note("unfit_reasoning", message.seq)
        return fitting
