"""What holds of every context, whatever has happened in a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests.server.context.context_stage import Quarters, Talk, calls_in, reopened, words
from tests.server.context.naive_context import naive_context

from nplt_server.context.messages import ContextMessage, ToolResultsMessage
from nplt_server.context.projection import Projection
from nplt_server.context.steps import Measure
from nplt_server.conversations.context_report import report_entries
from nplt_storage.entries import (
    ClearEntry,
    CompactionEntry,
    ModelInputEntry,
    QuarantineEntry,
    RollbackEntry,
    SystemInstructionEntry,
)


class Life:
    """A conversation to which anything may happen."""

    def __init__(self, *, turns_max: int | None) -> None:
        self.talk = Talk(budget=600, turns_max=turns_max)
        self.waiting: list[str] = []

    def turn(self, size: int) -> None:
        self.run(words(size + 1), answer=words(size // 2 + 1))

    def tools(self, size: int) -> None:
        self.run("go", steps=size % 3 + 1, result=words(size + 1))

    def giant(self, size: int) -> None:
        self.run(words(10 * size + 1), steps=1, result=words(20 * size + 1))

    def small_model(self, size: int) -> None:
        self.talk.budget = 150
        self.run(words(size + 1), steps=size % 2)
        self.talk.budget = 600

    def failure(self, size: int) -> None:
        turn_id = self.begin(words(size + 1))
        self.talk.call(turn_id)
        self.talk.fail(turn_id)

    def cancelled_tools(self, size: int) -> None:
        turn_id = self.begin()
        self.talk.call(turn_id)
        self.talk.output(turn_id, calls=2)
        for asked in (turn_id, None, turn_id):
            check_projection(self.talk, asked)
        self.talk.fail(turn_id)

    def meanwhile(self, size: int) -> None:
        """Something changes while a model is answering."""
        turn_id = self.begin()
        self.talk.call(turn_id)
        (self.clear, self.instruct, self.quarantine, self.compact)[size % 4](size)
        self.talk.output(turn_id)

    def wait(self, size: int) -> None:
        self.waiting.append(self.talk.prompt(words(size + 1), waits=True))

    def cancel(self, size: int) -> None:
        if self.waiting:
            self.talk.take_back(self.waiting.pop())

    def overtake(self, size: int) -> None:
        """Two prompts wait behind a running turn, and the second one is cancelled."""
        talk, turn_id = self.talk, self.begin(words(size + 1))
        talk.call(turn_id)
        talk.output(turn_id, calls=2)
        self.wait(size)
        (talk.fail, talk.take_back)[size % 2](talk.prompt("never mind", waits=True))
        talk.results(turn_id, words(size + 1))
        for asked in (turn_id, None, turn_id):
            check_projection(talk, asked)
        talk.call(turn_id)
        talk.output(turn_id)
        check_projection(talk, None)

    def note(self, size: int) -> None:
        self.talk.note(words(size % 40 + 1))

    def clear(self, size: int) -> None:
        self.talk.write(ClearEntry())

    def instruct(self, size: int) -> None:
        self.talk.write(SystemInstructionEntry(content=words(size % 30 + 1)))

    def other_tools(self, size: int) -> None:
        self.talk.tools_digest = f"tools {size % 3}"

    def quarantine(self, size: int) -> None:
        if head := self.talk.history.head_seq:
            target = 1 + size % head
            self.talk.write(QuarantineEntry(target_seq=target, code="refused", content="no"))

    def compact(self, size: int) -> None:
        if head := self.talk.history.head_seq:
            through = 1 + size % head
            self.talk.write(CompactionEntry(content=words(9), from_seq=1, through_seq=through))

    def roll_back(self, size: int) -> None:
        while self.waiting:
            self.cancel(size)
        if self.talk.history.head_seq > 1:
            to_seq = 1 + size % (self.talk.history.head_seq - 1)
            self.talk.write(RollbackEntry(to_seq=to_seq))

    def begin(self, text: str = "hello") -> str:
        """After those that wait, as in the server."""
        while self.waiting:
            self.talk.run(self.waiting.pop(0))
        return self.talk.prompt(text)

    def run(self, text: str, *, steps: int = 0, result: str = "", answer: str = "well") -> None:
        self.talk.run(self.begin(text), steps=steps, result=result, answer=answer)


Deed = Callable[[Life, int], None]
SAID: list[Deed] = [Life.turn, Life.tools, Life.giant, Life.small_model, Life.failure]
SAID += [Life.cancelled_tools, Life.wait, Life.cancel, Life.overtake, Life.meanwhile]
CHANGED: list[Deed] = [Life.note, Life.clear, Life.instruct, Life.other_tools]
CHANGED += [Life.quarantine, Life.compact, Life.roll_back]
deeds = st.lists(
    st.tuples(st.sampled_from([*SAID, *[Life.turn] * 5, *CHANGED]), st.integers(0, 199)),
    max_size=10,
)


@given(deeds, st.sampled_from([None, None, 2]))
def test_every_context_fits_is_whole_in_order_extends_the_last_and_adds_up(
    lived: list[tuple[Deed, int]], turns_max: int | None
) -> None:
    life = Life(turns_max=turns_max)
    for deed, size in lived:
        deed(life, size)
        check_projection(life.talk, life.waiting[0] if life.waiting else None)
    check_draft(life.talk)
    check_requests(life.talk)
    check_reopened(life.talk)


def check_projection(talk: Talk, turn_id: str | None) -> None:
    """What the kept projection says is what one made anew says, and adds up."""
    view = talk.projection.context(turn_id, talk.call_budget)
    fresh = Projection(talk.history, Measure(Quarters())).context(turn_id, talk.call_budget)
    assert list(view.messages) == list(fresh.messages)
    assert list(view.sizes) == list(fresh.sizes)
    assert view.tokens == fresh.tokens == sum(view.sizes) + talk.tools_tokens
    check_whole(list(view.messages))
    if not view.is_trimmed:
        first = view.has_head + (len(view.messages) > 0 and view.messages[0].role == "system")
        shown = [(message.seq, message.level) for message in view.messages[first:]]
        assert shown == naive_context(talk.history, turn_id)
    rows = report_entries(talk.history, view, turn_id)
    assert sum(row.tokens for row in rows) == view.tokens
    reported = [row for row in rows if row.seq]
    assert [row.seq for row in reported[1:]] == [row.through_seq + 1 for row in reported[:-1]]
    assert not reported or (reported[0].seq, reported[-1].through_seq) == (1, talk.history.head_seq)


def check_draft(talk: Talk) -> None:
    """A prompt that is not written yet leaves no trace in what is kept."""
    draft = ModelInputEntry(turn_id="new", content="what if?")
    before = list(talk.projection.context(None, talk.call_budget).messages)
    drafted = list(talk.projection.context(draft, talk.call_budget).messages)
    fresh = Projection(talk.history, Measure(Quarters())).context(draft, talk.call_budget)
    assert drafted == list(fresh.messages)
    assert list(talk.projection.context(None, talk.call_budget).messages) == before


def check_reopened(talk: Talk) -> None:
    """Who reads it from its files holds nothing that was taken back, and goes on alike."""
    projection = Projection(reopened(talk.history), Measure(Quarters()))
    due = talk.projection.due_epoch(None, talk.call_budget)
    assert projection.due_epoch(None, talk.call_budget) == due
    again = projection.context(None, talk.call_budget)
    assert list(again.messages) == list(talk.projection.context(None, talk.call_budget).messages)


def check_whole(messages: Sequence[ContextMessage]) -> None:
    """Every call is followed by its results; each turn's messages are in order."""
    for place, message in enumerate(messages):
        after = messages[place + 1] if place + 1 < len(messages) else None
        calls = calls_in(message)
        if calls:
            assert isinstance(after, ToolResultsMessage)
            given = [result.tool_call_id for result in after.results]
            assert given == [call.tool_call_id for call in calls]
        if isinstance(message, ToolResultsMessage):
            assert place
            assert calls_in(messages[place - 1])
    asked = [message.seq for message in messages if message.role == "model_input" and message.seq]
    # The head, if there is one, is numbered like the epoch it belongs to.
    assert asked[1:] == sorted(asked[1:])


def check_requests(talk: Talk) -> None:
    """Each fits, and inside an epoch begins with the one before it."""
    for request in talk.requests:
        check_whole(request.messages)
        assert request.view.tokens <= (request.view.call_budget.budget_tokens or 0)
    for before, after in zip(talk.requests, talk.requests[1:], strict=False):
        is_other = before.epoch is not after.epoch
        slides = before.epoch is not None and talk.turns_max is not None
        if not (is_other or slides or before.view.is_trimmed or after.view.is_trimmed):
            assert after.messages[: len(before.messages)] == before.messages
