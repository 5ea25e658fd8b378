"""B12: a context from ten thousand entries for a window of 8k tokens.

Cold: nothing was counted before, and no epoch says what is left out, as in a
conversation that was imported. Then the same conversation goes on in an epoch:
what a further turn costs must not depend on how much came before, so it is
measured in a conversation a hundred times shorter too, and messages are counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta

from msgspec.structs import replace

from benchmarks.conversations import CONTENT_BYTES, FIRST_DAY, message, text_of
from benchmarks.measuring import alternate
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict
from nplt_server.context.projection import Projection
from nplt_server.context.selection import CallBudget, ContextView
from nplt_server.context.steps import Measure
from nplt_server.digest import levels_of
from nplt_server.tokens import TokenCounter, best_counter
from nplt_storage.entries import Entry, ModelInputEntry, ModelOutputEntry
from nplt_storage.history import ConversationHistory
from nplt_storage.ids import new_entry_id

ENTRIES = 10_000
FEW_ENTRIES = 100
BUDGET = 8_000
TURNS = 20
"""In one round, so that a round takes longer than the clock's grain."""


def projecting(plan: Plan) -> list[Verdict]:
    counter = best_counter()
    long, short = _Spoken(plan.sized(ENTRIES, smoke=500), counter), _Spoken(FEW_ENTRIES, counter)
    cold = alternate({"cold": long.project_cold}, rounds=plan.rounds())
    for spoken in (long, short):
        spoken.begin_epoch()
    further = alternate({"long": long.go_on, "short": short.go_on}, rounds=plan.rounds())
    return [
        Question(number="B12", what="8k context from 10,000 entries").at_most(
            200, cold.median("cold") * 1e3, unit="ms", details=f"counter {counter.name}"
        ),
        Question(number="B12", what="a further turn, 10,000 entries").at_most(
            2,
            further.ratio("long", "short"),
            unit="× at 100",
            details=further.summary("long", "short", unit="µs", per_unit=1e6 / TURNS),
        ),
        Question(number="B12", what="messages counted for it").at_most(
            3, long.counted_per_turn, unit="messages"
        ),
    ]


class _Spoken:
    """A conversation of prompts and answers that have summaries and gists."""

    def __init__(self, entries: int, counter: TokenCounter) -> None:
        self.history = ConversationHistory("b12", _entries(entries))
        self._counter = counter
        self._projection = Projection(self.history, Measure(counter))
        self._call_budget = CallBudget(budget_tokens=100 * BUDGET)
        """When it goes on: so that the epoch lasts for all the rounds."""
        self.counted_per_turn = 0.0

    def begin_epoch(self) -> None:
        draft = self._projection.due_epoch(None, CallBudget(budget_tokens=BUDGET))
        if draft is None:
            raise ValueError("the conversation is too short")
        self._add(draft)

    def project_cold(self) -> float:
        begun = time.perf_counter()
        projection = Projection(self.history, Measure(self._counter))
        call_budget = CallBudget(budget_tokens=BUDGET)
        draft = projection.due_epoch(None, call_budget)
        view = projection.context(None, call_budget, epoch=draft)
        seconds = time.perf_counter() - begun
        _check(view)
        return seconds

    def go_on(self) -> float:
        self._projection.context(None, self._call_budget)
        counted = self._projection.measure.counted
        seconds = 0.0
        for _ in range(TURNS):
            seq = self.history.head_seq + 1
            turn_id = f"further{seq}"
            self._add(ModelInputEntry(turn_id=turn_id, content=text_of(80)))
            begun = time.perf_counter()
            draft = self._projection.due_epoch(turn_id, self._call_budget)
            view = self._projection.context(turn_id, self._call_budget)
            seconds += time.perf_counter() - begun
            if draft is not None or view.is_trimmed:
                raise ValueError("the epoch did not last")
            self._add(ModelOutputEntry(turn_id=turn_id, content=text_of(80), sent=view.sent))
        self.counted_per_turn = (self._projection.measure.counted - counted) / TURNS
        return seconds

    def _add(self, draft: Entry) -> None:
        seq = self.history.head_seq + 1
        stamped = self.history.stamp(
            draft, id=new_entry_id(), timestamp=FIRST_DAY + timedelta(seconds=seq)
        )
        self.history.add(stamped)


def _entries(number: int) -> Iterable[Entry]:
    for seq in range(1, number + 1):
        entry = message(seq, content=f"{seq} {text_of(CONTENT_BYTES)}")
        assert isinstance(entry, ModelInputEntry | ModelOutputEntry)
        yield replace(entry, sections=levels_of(entry.content))


def _check(view: ContextView) -> None:
    levels = {shown.level for shown in view.messages}
    if not BUDGET / 4 <= view.tokens <= BUDGET or levels != {"live", "summary", "gist"}:
        raise ValueError(f"that is not what was wanted: {view.tokens} tokens, {levels}")
