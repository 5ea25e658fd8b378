"""Message by message into steps.

A message is looked at once, in order; only what has not been closed yet, the user's
side at the end, can still change by what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from nplt_server.context import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.providers.compiling.answers import AnswerCompiler
from nplt_server.providers.compiling.compiled import (
    AssistantStep,
    Compiled,
    Repair,
    Step,
    UserStep,
)
from nplt_server.providers.compiling.names import CallIds
from nplt_server.providers.compiling.repairs import Repairs
from nplt_server.providers.compiling.rules import VendorRules
from nplt_server.providers.compiling.texts import is_blank, sendable
from nplt_server.providers.compiling.user_side import UserSide
from nplt_storage.facts.entries import ModelInvocationDescriptor

BEGINNING_NOT_SHOWN: Final = "(what came before is not shown)"
GO_ON: Final = "(go on)"


def compile_context(
    messages: Sequence[ContextMessage], *, rules: VendorRules, origin: ModelInvocationDescriptor
) -> Compiled:
    """For the model that is asked: `origin`, if it answered before."""
    compilation = Compilation(rules=rules, origin=origin)
    for message in messages[:]:  # a slice, because some sequences are slow one by one
        compilation.add(message)
    return compilation.compiled()


class Compilation:
    def __init__(self, *, rules: VendorRules, origin: ModelInvocationDescriptor) -> None:
        self._rules = rules
        self._repairs = Repairs()
        self._answers = AnswerCompiler(
            rules=rules, origin=origin, ids=CallIds(rules), repairs=self._repairs
        )
        self._instructions: list[str] = []
        self._steps: list[Step] = []
        self._user = UserSide(rules, self._repairs)

    def add(self, message: ContextMessage) -> None:
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

    def compiled(self) -> Compiled:
        """Of what was added so far; more may be added."""
        last, repairs = self._user.step()
        if last is None:
            last = UserStep(texts=(GO_ON,), text_seqs=(0,))
            repairs = (Repair(code="placeholder", seq=0, detail=GO_ON),)
        system, codes = sendable("\n\n".join(self._instructions), self._rules.text_characters_max)
        repairs += tuple(Repair(code=code, seq=0) for code in codes)
        return Compiled(
            system=system,
            steps=(*self._steps, last),
            repairs=self._repairs.so_far() + repairs,
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
        answer = self._answers.step(message)
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
