"""A conversation played as the server plays it, call by call, without any model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count

import pytest
from msgspec.structs import replace
from tests.storage.conversations import START, Pen, answer_to, call

from nplt_server.context.messages import ContextMessage, ModelOutputMessage
from nplt_server.context.projection import Policy, Projection
from nplt_server.context.screens import last_screen_in
from nplt_server.context.selection import CallBudget, ContextView, PromptReference
from nplt_server.context.steps import Measure
from nplt_server.tokens import CharacterCounter
from nplt_server.tools import ToolOffer
from nplt_storage.entries import (
    LIVE_SCREEN,
    Entry,
    EpochEntry,
    FaultEntry,
    LevelOfDetailSections,
    ModelInputEntry,
    ModelOutputEntry,
    NotebookEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.rows import fold_all, new_row
from nplt_storage.turns import Turn


def turns_searched_for_screens(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gives the list to which the number of each turn is added that is searched from now on."""
    searched: list[int] = []

    def search(turn: Turn, epoch_seq: int, quarantined: Collection[int]) -> str | None:
        searched.append(turn.number)
        return last_screen_in(turn, epoch_seq, quarantined)

    monkeypatch.setattr("nplt_server.context.screens.last_screen_in", search)
    return searched


def render_context(
    history: ConversationHistory,
    prompt_ref: PromptReference = None,
    *,
    measure: Measure | None = None,
    call_budget: CallBudget | None = None,
    policy: Policy = "epochs",
) -> tuple[ContextMessage, ...]:
    """From nothing: a projection that was kept must give the same."""
    projection = Projection(history, measure or Measure(CharacterCounter()), policy=policy)
    return tuple(projection.context(prompt_ref, call_budget or CallBudget()).messages)


def calls_in(message: ContextMessage) -> tuple[ToolCallRequest, ...]:
    return message.tool_calls if isinstance(message, ModelOutputMessage) else ()


class Quarters:
    """Four characters are a token: easy to reckon with."""

    name = "quarters"

    def count(self, text: str) -> int:
        return -(-len(text) // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one call was shown."""

    turn_id: str
    view: ContextView
    epoch: EpochEntry | None
    """In force then."""

    @property
    def messages(self) -> list[ContextMessage]:
        return list(self.view.messages)


@dataclass(slots=True, kw_only=True)
class Talk:
    budget: int | None = 2_000
    tools_digest: str = "tools"
    tools_tokens: int = 10
    turns_max: int | None = None
    policy: Policy = "epochs"
    screen: str = ""
    requests: list[Request] = field(default_factory=list)
    pen: Pen = field(init=False)
    projection: Projection = field(init=False)
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _written_screen: tuple[int, str] = (0, "")

    def __post_init__(self) -> None:
        self.pen = Pen(history=ConversationHistory("s1", turns_max=self.turns_max))
        self.projection = Projection(self.history, Measure(Quarters()), policy=self.policy)

    @property
    def history(self) -> ConversationHistory:
        return self.pen.history

    @property
    def call_budget(self) -> CallBudget:
        return CallBudget(
            budget_tokens=self.budget,
            tools_tokens=self.tools_tokens,
            offer=ToolOffer(digest=self.tools_digest),
        )

    @property
    def epochs(self) -> list[EpochEntry]:
        return [entry for entry in self.history.entries if isinstance(entry, EpochEntry)]

    @property
    def reasons(self) -> list[str]:
        return [epoch.reason for epoch in self.epochs]

    def write(self, draft: Entry) -> Entry:
        return self.pen.write(draft)

    def note(self, text: str) -> None:
        self.screen = text
        self.write(NotebookEntry(content=text))

    # The parts of a turn

    def prompt(self, text: str = "hello", *, waits: bool = False) -> str:
        turn_id = f"t{next(self._numbers)}"
        sections = levels(text)
        if not waits:
            sections = self._with_screen(sections, text)
        self.write(ModelInputEntry(turn_id=turn_id, content=text, sections=sections))
        return turn_id

    def call(self, turn_id: str) -> ContextView:
        epoch = self.projection.due_epoch(turn_id, self.call_budget, screen=self.screen)
        if epoch is not None:
            self.write(epoch)
        view = self.projection.context(turn_id, self.call_budget)
        self.requests.append(Request(turn_id=turn_id, view=view, epoch=self.history.epoch))
        return view

    def output(self, turn_id: str, text: str = "well", *, calls: int = 0) -> ModelOutputEntry:
        turn = self.history.turn(turn_id)
        assert turn is not None
        entry = self.write(
            ModelOutputEntry(
                turn_id=turn_id,
                content=text,
                tool_calls=tuple(call(id=f"{turn_id}-{n}") for n in range(calls)),
                call=turn.last_call + 1,
                sections=levels(text),
                sent=self.requests[-1].view.sent if self.requests else None,
            )
        )
        assert isinstance(entry, ModelOutputEntry)
        return entry

    def results(self, turn_id: str, text: str = "seen") -> None:
        requests = self.history.open_tool_calls(turn_id)
        given = [_result(request, text) for request in requests]
        given[-1] = replace(given[-1], sections=self._with_screen(given[-1].sections, text))
        self.write(ToolResultsEntry(turn_id=turn_id, results=tuple(given)))

    def fail(self, turn_id: str) -> None:
        if self.history.open_tool_calls(turn_id):
            self.results(turn_id, "cancelled")
        self.write(FaultEntry(turn_id=turn_id, content="no", code="cancelled", state="failed"))

    def take_back(self, turn_id: str) -> None:
        """A prompt that waits."""
        end = FaultEntry(
            turn_id=turn_id, content="no", code="cancelled", state="interrupted", never_began=True
        )
        self.write(end)

    # Whole ones

    def turn(
        self, text: str = "hello", *, steps: int = 0, result: str = "seen", answer: str = "well"
    ) -> str:
        return self.run(self.prompt(text), steps=steps, result=result, answer=answer)

    def run(
        self, turn_id: str, *, steps: int = 0, result: str = "seen", answer: str = "well"
    ) -> str:
        for _ in range(steps):
            self.call(turn_id)
            self.output(turn_id, "let me see", calls=2)
            self.results(turn_id, result)
        self.call(turn_id)
        self.output(turn_id, answer)
        return turn_id

    def _with_screen(
        self, sections: LevelOfDetailSections | None, content: str
    ) -> LevelOfDetailSections | None:
        epoch = self.history.epoch
        epoch_seq = epoch.seq if epoch else 0
        known_seq, known = self._written_screen
        if known_seq < epoch_seq and epoch is not None:
            known = epoch.screen
        if self.screen == known:
            return sections
        self._written_screen = (self.history.head_seq + 1, self.screen)
        shown = sections or LevelOfDetailSections(live=(("", content),))
        return shown.with_live_section(LIVE_SCREEN, self.screen)


def reopened(history: ConversationHistory) -> ConversationHistory:
    """As from its files: what was taken back is not read, and neither is that it was."""
    row = fold_all(new_row("s1", user="u", created_at=START), history.entries)
    return ConversationHistory("s1", history.active, row=row, turns_max=history.turns_max)


def levels(text: str) -> LevelOfDetailSections | None:
    """A summary of up to 40 tokens and a gist of 10: the beginning, plainly marked."""
    if len(text) <= 40:
        return None
    summary = (("", f"(summary) {text[:150]}"),) if len(text) > 160 else ()
    return LevelOfDetailSections(
        live=(("", text),), summary=summary, gist=(("", f"(gist) {text[:32]}"),)
    )


def _result(request: ToolCallRequest, text: str) -> ToolCallResult:
    return replace(answer_to(request, text), sections=levels(text))


def words(number: int) -> str:
    """So many tokens of text, by `Quarters`."""
    return ("word " * number)[: 4 * number - 1] + "."
