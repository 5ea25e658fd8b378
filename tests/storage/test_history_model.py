"""The history's bookkeeping against a model that looks through everything each time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.storage.conversations import START, answer_to, call, counting_ids

from nplt_storage.entries import (
    ClearEntry,
    DebugEntry,
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ModelSwitchedEntry,
    RenamedEntry,
    SystemInstructionEntry,
    ToolResultsEntry,
)
from nplt_storage.errors import BadEntry
from nplt_storage.history import ConversationHistory
from nplt_storage.tool_calls import ToolCallRequest

TURNS = ["t1", "t2", "t3", "t4", "t5"]
turn_ids = st.sampled_from(TURNS)
calls = st.lists(st.sampled_from([call("look", "a"), call("listen", "b")]), max_size=2)
some_calls = st.lists(st.sampled_from([call("look", "a"), call("listen", "b")]), min_size=1)
moves = st.sampled_from(["ask", "ask", "ask", "answer", "give up"])
states = st.sampled_from(["completed", "completed", "completed", "interrupted", "failed"])


class Naive:
    """Every question by scanning the list of entries from its beginning."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def of_turn(self, turn_id: str, through: int | None = None) -> list[Any]:
        kinds = (ModelInputEntry, ModelOutputEntry, ToolResultsEntry, FaultEntry)
        return [
            entry
            for entry in self.entries[:through]
            if isinstance(entry, kinds) and entry.turn_id == turn_id
        ]

    def end(self, turn_id: str, through: int | None = None) -> Any:
        for entry in self.of_turn(turn_id, through):
            if isinstance(entry, FaultEntry):
                return entry
            if isinstance(entry, ModelOutputEntry) and (
                entry.state != "completed" or not entry.tool_calls
            ):
                return entry
        return None

    def state(self, turn_id: str) -> str | None:
        mine = self.of_turn(turn_id)
        if not mine:
            return None
        end = self.end(turn_id)
        if end is not None:
            return str(end.state)
        return "running" if len(mine) > 1 else "waiting"

    def open_calls(self, turn_id: str) -> tuple[ToolCallRequest, ...]:
        mine = self.of_turn(turn_id)
        if self.end(turn_id) is None and mine and isinstance(mine[-1], ModelOutputEntry):
            return mine[-1].tool_calls
        return ()

    def context(self, turn_id: str) -> list[Entry]:
        end = self.end(turn_id)
        until = len(self.entries) if end is None else end.seq - 1
        clears = [e.seq for e in self.entries[:until] if isinstance(e, ClearEntry)]
        cleared = clears[-1] if clears else 0
        ended = []
        for other in TURNS:
            other_end = self.end(other, until)
            if other != turn_id and other_end is not None and other_end.seq > cleared:
                ended.append((other_end.seq, other))
        shown = [other for _, other in sorted(ended)] + [turn_id]
        return [e for turn in shown for e in self.of_turn(turn) if not isinstance(e, FaultEntry)]

    def takes(self, draft: Any) -> bool:
        turn_id = str(draft.turn_id)
        if isinstance(draft, ModelInputEntry):
            return bool(draft.content.strip()) and not self.of_turn(turn_id)
        belongs = isinstance(draft, ModelOutputEntry | ToolResultsEntry | FaultEntry)
        if (belongs and not self.of_turn(turn_id)) or self.end(turn_id) is not None:
            return False
        if isinstance(draft, ModelOutputEntry):
            outputs = [e.call for e in self.of_turn(turn_id) if isinstance(e, ModelOutputEntry)]
            says = bool(draft.content or draft.tool_calls or draft.state != "completed")
            return says and not self.open_calls(turn_id) and draft.call > max(outputs, default=-1)
        if isinstance(draft, ToolResultsEntry):
            asked = [c.tool_call_id for c in self.open_calls(turn_id)]
            return bool(asked) and asked == [r.tool_call_id for r in draft.results]
        return True


class HistoryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.naive = Naive()
        self.history = ConversationHistory("s1")
        self.new_id = counting_ids()

    def offer(self, draft: Entry) -> None:
        taken = self.naive.takes(draft)
        before = self.history.head_seq
        if not taken:
            with pytest.raises(BadEntry):
                self.history.stamp(draft, id=self.new_id(), timestamp=START)
            assert self.history.head_seq == before
            return
        entry = self.history.stamp(draft, id=self.new_id(), timestamp=START)
        assert self.history.head_seq == before
        self.history.add(entry)
        self.naive.entries.append(entry)

    @rule(turn_id=turn_ids, content=st.sampled_from(["hello", "again", " "]), id=turn_ids)
    def prompt(self, turn_id: str, content: str, id: str) -> None:  # noqa: A002
        self.offer(ModelInputEntry(turn_id=turn_id, content=content, message_id=f"m-{id}"))

    @rule(
        turn_id=turn_ids,
        content=st.sampled_from(["", "hi"]),
        asked=calls,
        state=states,
        number=st.integers(0, 2),
    )
    def output(self, turn_id: str, content: str, asked: Any, state: Any, number: int) -> None:
        self.offer(
            ModelOutputEntry(
                turn_id=turn_id, content=content, tool_calls=tuple(asked), state=state, call=number
            )
        )

    @rule(turn_id=turn_ids, asked=calls)
    def results(self, turn_id: str, asked: list[ToolCallRequest]) -> None:
        self.offer(ToolResultsEntry(turn_id=turn_id, results=tuple(map(answer_to, asked))))

    @rule(pick=st.integers(0, 5), asked=some_calls, move=moves)
    def a_move_that_fits(self, pick: int, asked: list[ToolCallRequest], move: str) -> None:
        """Random drafts seldom get far into a turn; these do."""
        open_turns = [turn_id for turn_id in TURNS if self.naive.end(turn_id) is None]
        if not open_turns:
            return
        turn_id = open_turns[pick % len(open_turns)]
        mine = self.naive.of_turn(turn_id)
        waiting = self.naive.open_calls(turn_id)
        number = 1 + max((e.call for e in mine if isinstance(e, ModelOutputEntry)), default=-1)
        if not mine:
            self.offer(ModelInputEntry(turn_id=turn_id, content="hello"))
        elif waiting and move != "give up":
            self.offer(ToolResultsEntry(turn_id=turn_id, results=tuple(map(answer_to, waiting))))
        elif move == "give up":
            self.offer(FaultEntry(turn_id=turn_id, content="", code="x", state="interrupted"))
        else:
            wanted = tuple(asked) if move == "ask" else ()
            self.offer(
                ModelOutputEntry(turn_id=turn_id, content="so", tool_calls=wanted, call=number)
            )

    @rule(turn_id=turn_ids)
    def fault(self, turn_id: str) -> None:
        self.offer(FaultEntry(turn_id=turn_id, content="", code="x", state="failed"))

    @rule(picks=st.lists(st.tuples(st.integers(0, 5), some_calls, moves), min_size=2, max_size=6))
    def a_run_of_moves_that_fit(self, picks: list[Any]) -> None:
        for pick, asked, move in picks:
            self.a_move_that_fits(pick, asked, move)
            self.every_turn_is_the_same()

    @rule(turn_id=st.none() | turn_ids)
    def remark(self, turn_id: str | None) -> None:
        self.offer(DebugEntry(turn_id=turn_id, category="x", content="x"))

    @rule(name=st.sampled_from(["a", "b"]))
    def facts(self, name: str) -> None:
        self.offer(RenamedEntry(name=name))
        self.offer(ModelSwitchedEntry(model=name))
        self.offer(SystemInstructionEntry(content=name))

    @rule()
    def clear(self) -> None:
        self.offer(ClearEntry())

    @invariant()
    def every_turn_is_the_same(self) -> None:
        for turn_id in TURNS:
            assert self.history.turn_state(turn_id) == self.naive.state(turn_id)
            assert self.history.end_of_turn(turn_id) == self.naive.end(turn_id)
            assert self.history.open_calls(turn_id) == self.naive.open_calls(turn_id)
            assert self.history.context_entries(turn_id) == self.naive.context(turn_id)

    @invariant()
    def everything_else_is_the_same(self) -> None:
        entries = self.naive.entries
        assert list(self.history.entries) == entries
        assert self.history.head_seq == len(entries)
        prompts = [entry for entry in entries if isinstance(entry, ModelInputEntry)]
        answers = [entry for entry in entries if isinstance(entry, ModelOutputEntry)]
        assert self.history.message_count == len(prompts) + len(answers)
        assert self.history.unfinished_turns() == [
            entry for entry in prompts if self.naive.end(str(entry.turn_id)) is None
        ]
        for turn_id in TURNS:
            first = [entry for entry in prompts if entry.message_id == f"m-{turn_id}"][:1]
            assert self.history.prompt_with(f"m-{turn_id}") == (first[0] if first else None)
        names = [entry.name for entry in entries if isinstance(entry, RenamedEntry)]
        assert self.history.name == (names[-1] if names else None)
        assert self.history.model == self.history.name == self.history.system_instruction

    @invariant()
    def a_history_read_again_is_the_same(self) -> None:
        again = ConversationHistory("s1", self.naive.entries)
        assert again.get_context() == self.history.get_context()
        assert again.recent(3) == self.history.recent(3)
        assert again.unfinished_turns() == self.history.unfinished_turns()


TestHistoryMachine = HistoryMachine.TestCase
TestHistoryMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
