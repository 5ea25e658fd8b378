"""The history's bookkeeping against a model that looks through everything each time.

What stands is defined the way FORMAT.md does, by going back; and beside the whole
history there are windows on its end and trimmed ones, which grow with it and must
never say anything else: also where they can't follow.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from operator import methodcaller
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.storage.conversations import START, answer_to, call, context_entries, counting_ids
from tests.storage.naive_history import (
    TURNS,
    Naive,
    end_of,
    what_came_after_checkpoint,
    window_on,
)

from nplt_storage import BadEntry, ConversationHistory, NotInReach
from nplt_storage.entries import (
    ArchivedEntry,
    CheckpointEntry,
    ClearEntry,
    CompactionEntry,
    DebugEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ModelSwitchedEntry,
    NotebookEntry,
    PinnedEntry,
    QuarantineEntry,
    RenamedEntry,
    RollbackEntry,
    SystemInstructionEntry,
    ToolCallRequest,
    ToolResultsEntry,
    WidgetEntry,
)
from nplt_storage.rows import (
    Checkpoint,
    StateEntry,
    checkpoint_state,
    fold,
    fold_all,
    new_row,
    state_key_of,
    state_seqs_of,
)

turn_ids = st.sampled_from(TURNS)
calls = st.lists(st.sampled_from([call("look", "a"), call("listen", "b")]), max_size=2)
some_calls = st.lists(st.sampled_from([call("look", "a"), call("listen", "b")]), min_size=1)
moves = st.sampled_from(["ask", "ask", "ask", "answer", "give up"])
states = st.sampled_from(["completed", "completed", "completed", "interrupted", "failed"])
targets = st.integers(-1, 40)
reaches = st.lists(st.integers(0, 20), min_size=3, max_size=3).map(sorted) | st.just([2, 1, 3])
usages = st.sampled_from([None, {"input_tokens": 3, "output_tokens": 1}])
FACTS = ["message_count", "name", "model", "pinned", "archived", "hidden", "head_seq"]


class HistoryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.naive = Naive()
        self.history = ConversationHistory("s1")
        self.row = new_row("s1", user="u", created_at=START)
        self.windows: list[ConversationHistory] = []
        self.shown: tuple[Any, list[int]] = ((), [])
        self.new_id = counting_ids()

    def offer(self, draft: Entry) -> None:
        before = self.history.head_seq
        if not self.naive.takes(draft):
            with pytest.raises(BadEntry):
                self.history.stamp(draft, id=self.new_id(), timestamp=START)
            assert self.history.head_seq == before
            return
        entry = self.history.stamp(draft, id=self.new_id(), timestamp=START)
        assert self.history.head_seq == before
        follow = [window.is_in_reach and _can_follow(window, entry) for window in self.windows]
        self.naive.add(entry)
        self.row = fold(self.row, entry)
        for history in (self.history, *self.windows):
            history.add(entry)
        assert [window.is_in_reach for window in self.windows] == follow

    # What may happen in a turn

    @rule(turn_id=turn_ids, content=st.sampled_from(["hello", "again", " "]), id=turn_ids)
    def prompt(self, turn_id: str, content: str, id: str) -> None:  # noqa: A002
        self.offer(ModelInputEntry(turn_id=turn_id, content=content, message_id=f"m-{id}"))

    @rule(
        turn_id=turn_ids,
        content=st.sampled_from(["", "hi"]),
        asked=calls,
        state=states,
        number=st.integers(0, 2),
        usage=usages,
    )
    def output(self, turn_id: str, asked: Any, number: int, **fields: Any) -> None:
        self.offer(
            ModelOutputEntry(turn_id=turn_id, tool_calls=tuple(asked), call=number, **fields)
        )

    @rule(turn_id=turn_ids, asked=calls)
    def results(self, turn_id: str, asked: list[ToolCallRequest]) -> None:
        self.offer(ToolResultsEntry(turn_id=turn_id, results=tuple(map(answer_to, asked))))

    @rule(turn_id=turn_ids)
    def fault(self, turn_id: str) -> None:
        self.offer(FaultEntry(turn_id=turn_id, content="", code="x", state="failed"))

    @rule(pick=st.integers(0, 5), asked=some_calls, move=moves)
    def a_move_that_fits(self, pick: int, asked: list[ToolCallRequest], move: str) -> None:
        """Random drafts seldom get far into a turn; these do."""
        open_turns = [turn_id for turn_id in TURNS if not self.naive.is_over(turn_id)]
        if not open_turns:
            return
        turn_id = open_turns[pick % len(open_turns)]
        mine = self.naive.of_turn(turn_id)
        waiting = self.naive.open_tool_calls(turn_id)
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

    @rule(picks=st.lists(st.tuples(st.integers(0, 5), some_calls, moves), min_size=2, max_size=6))
    def a_run_of_moves_that_fit(self, picks: list[Any]) -> None:
        for pick, asked, move in picks:
            self.a_move_that_fits(pick, asked, move)
            self.every_turn_is_the_same()

    # What may happen between them

    @rule(turn_id=st.none() | turn_ids)
    def remark(self, turn_id: str | None) -> None:
        self.offer(DebugEntry(turn_id=turn_id, category="x", content="x"))

    @rule(name=st.sampled_from(["a", "b"]), flag=st.booleans())
    def choices(self, name: str, flag: bool) -> None:
        self.offer(RenamedEntry(name=name))
        self.offer(ModelSwitchedEntry(model=name))
        self.offer(PinnedEntry(pinned=flag))
        self.offer(ArchivedEntry(archived=flag))

    @rule(text=st.sampled_from(["a", "b"]))
    def instruction(self, text: str) -> None:
        self.offer(SystemInstructionEntry(content=text))

    @rule(text=st.sampled_from(["a", "b"]))
    def notebook(self, text: str) -> None:
        self.offer(NotebookEntry(content=text))

    @rule(name=st.sampled_from(["clock", "todo"]), value=st.integers(0, 3))
    def widget(self, name: str, value: int) -> None:
        self.offer(WidgetEntry(widget=name, state={"value": value}))

    @rule()
    def clear(self) -> None:
        self.offer(ClearEntry())

    @rule(first=targets, last=targets, reach=reaches)
    def what_models_see(self, first: int, last: int, reach: list[int]) -> None:
        omitted, gist, summary = reach
        self.offer(
            EpochEntry(
                reason="x", omitted_through=omitted, gist_through=gist, summary_through=summary
            )
        )
        self.offer(CompactionEntry(content="x", from_seq=first, through_seq=last))
        self.offer(QuarantineEntry(target_seq=first, code="x", content="x"))

    @rule(at_seq=targets)
    def fork(self, at_seq: int) -> None:
        self.offer(ForkedEntry(from_session_id="s0", at_seq=at_seq))

    @rule(to_seq=targets)
    def go_back_anywhere(self, to_seq: int) -> None:
        self.offer(RollbackEntry(to_seq=to_seq))

    @precondition(lambda self: self.history.head_seq > 1)
    @rule(pick=st.integers(0, 1000), near=st.booleans())
    def go_back(self, pick: int, near: bool) -> None:
        """Once every turn has ended, so that it is allowed."""
        for prompt in self.history.unfinished_turns():
            self.offer(FaultEntry(turn_id=prompt.turn_id, content="", code="x", state="failed"))
        others = self.history.head_seq - 1
        steps = pick % min(4, others) if near else pick % others
        self.offer(RollbackEntry(to_seq=others - steps))

    @rule(turns=st.lists(turn_ids, min_size=1, max_size=3, unique=True), end=st.booleans())
    def take_turns_back(self, turns: list[str], end: bool) -> None:
        if end:
            for prompt in self.history.unfinished_turns():
                self.offer(FaultEntry(turn_id=prompt.turn_id, content="", code="x", state="failed"))
        there = [turn_id for turn_id in turns if self.naive.of_turn(turn_id)]
        head_seq = self.history.head_seq
        self.offer(RollbackEntry(to_seq=head_seq, turns=tuple(there if end and there else turns)))

    @rule(times=st.integers(1, 3))
    def bring_back(self, times: int) -> None:
        for _ in range(times):
            try:
                draft = self.history.redo()
            except BadEntry:
                last = self.naive.last(self.naive.entries[-1:], RollbackEntry, "redo")
                assert last is not False, "a rollback, and nothing since"
                return
            self.offer(draft)
            self.no_window_says_anything_else()

    @precondition(lambda self: self.history.head_seq > 1)
    @rule(
        steps=st.lists(st.tuples(st.integers(0, 1000), st.booleans()), min_size=2, max_size=4),
        entries=st.integers(0, 3),
    )
    def go_back_and_forth(self, steps: list[tuple[int, bool]], entries: int) -> None:
        """What was taken back stands again, and someone looks on who holds next to nothing."""
        for pick, near in steps:
            self.open_a_window(entries)
            self.go_back(pick, near)
            self.no_window_says_anything_else()
            self.a_move_that_fits(pick, [call()], "answer")
            self.notebook(f"{pick}")
            self.widget("todo", pick)

    # Those who hold only a part

    @rule(entries=st.integers(0, 8))
    def open_a_window(self, entries: int) -> None:
        row = fold_all(new_row("s1", user="u", created_at=START), self.naive.entries)
        held = window_on(self.naive.entries, row, entries)
        self.watch(ConversationHistory("s1", held, row=row))

    @rule(later=st.integers(0, 4), trimmed=st.integers(0, 1000))
    def trim(self, later: int, trimmed: int) -> None:
        row = fold_all(new_row("s1", user="u", created_at=START), self.naive.entries)
        state = Checkpoint(row=row, state_entries=tuple(self.state_entries().values()))
        self.offer(CheckpointEntry(state=checkpoint_state(state)))
        for number in range(later):
            self.a_move_that_fits(number, [call()], "answer")
        kept = what_came_after_checkpoint(self.naive, trimmed)
        self.watch(ConversationHistory("s1", kept))

    def watch(self, window: ConversationHistory) -> None:
        self.windows = [*self.windows[-2:], window]

    def state_entries(self) -> dict[Any, StateEntry]:
        state_entries = [entry for entry in self.naive.active if isinstance(entry, StateEntry)]
        return {state_key_of(entry): entry for entry in state_entries}

    # What must be so

    @invariant()
    def every_turn_is_the_same(self) -> None:
        for turn_id in TURNS:
            assert self.history.turn_state(turn_id) == self.naive.state(turn_id)
            assert self.history.end_of_turn(turn_id) == self.naive.end(turn_id)
            assert self.history.open_tool_calls(turn_id) == self.naive.open_tool_calls(turn_id)
            assert context_entries(self.history, turn_id) == self.naive.context(turn_id)

    @invariant()
    def shown_turns_are_in_order_and_one_list_while_they_only_grow(self) -> None:
        shown = self.history.shown_turns
        numbers = [turn.number for turn in shown]
        assert numbers == [self.naive.number(turn_id) for turn_id in self.naive.shown()]
        known, before = self.shown
        if shown is known:
            assert numbers[: len(before)] == before
        self.shown = shown, numbers

    @invariant()
    def everything_else_is_the_same(self) -> None:
        naive, history = self.naive, self.history
        assert list(history.entries) == naive.entries
        assert list(history.active) == naive.active
        assert (history.head_seq, history.first_seq) == (len(naive.entries), 1)
        assert history.message_count == len(naive.spoken)
        assert history.unfinished_turns() == naive.unfinished()
        for turn_id in TURNS:
            known = [e for e in naive.prompts if e.message_id == f"m-{turn_id}"]
            assert history.prompt_by_message_id(f"m-{turn_id}") == (known[0] if known else None)
        assert history.name == naive.name()
        assert history.model == naive.last(naive.entries, ModelSwitchedEntry, "model")
        assert history.pinned == bool(naive.last(naive.entries, PinnedEntry, "pinned"))
        assert history.archived == bool(naive.last(naive.entries, ArchivedEntry, "archived"))
        state_entries = naive.last(naive.active, SystemInstructionEntry, "content")
        assert history.system_instruction == state_entries
        assert history.notebook == naive.last(naive.active, NotebookEntry, "content")
        widgets = [e for e in naive.active if isinstance(e, WidgetEntry)]
        assert history.widget_states == {e.widget: e.state for e in widgets}
        epochs = [e for e in naive.active if isinstance(e, EpochEntry)]
        assert history.epoch == (epochs[-1] if epochs else None)
        clears = [e.seq for e in naive.active if isinstance(e, ClearEntry)]
        compactions = [e for e in naive.active if isinstance(e, CompactionEntry)]
        since = max(clears, default=0)
        assert list(history.compactions) == [e for e in compactions if e.seq > since]
        quarantines = [e for e in naive.active if isinstance(e, QuarantineEntry)]
        latest = {e.target_seq: e for e in quarantines}
        assert history.quarantined == {seq: e for seq, e in latest.items() if not e.lifted}

    @invariant()
    def a_history_read_again_is_the_same(self) -> None:
        again = ConversationHistory("s1", self.naive.entries)
        assert again.get_context() == self.history.get_context()
        assert again.recent(3) == self.history.recent(3)
        assert again.unfinished_turns() == self.history.unfinished_turns()
        assert list(again.active) == list(self.history.active)
        assert again.hidden == self.history.hidden

    @invariant()
    def the_row_says_the_same(self) -> None:
        row = fold_all(new_row("s1", user="u", created_at=START), self.naive.entries)
        history = self.history
        assert row == self.row, "as if made entry by entry"
        assert (row.head_seq, row.message_count) == (history.head_seq, history.message_count)
        assert (row.name if row.named else None) == history.name
        assert (row.model, row.pinned, row.archived) == (
            history.model,
            history.pinned,
            history.archived,
        )
        assert row.hidden == history.hidden
        unfinished = [(entry.turn_id, entry.seq) for entry in history.unfinished_turns()]
        assert sorted(row.unfinished) == sorted(unfinished)
        assert state_seqs_of(row) == {
            mark: entry.seq for mark, entry in self.state_entries().items()
        }

    @invariant()
    def the_row_knows_what_only_ever_adds_up(self) -> None:
        turned = [e.seq for e in self.naive.entries if isinstance(e, RollbackEntry)]
        since = self.naive.entries[turned[-1] if turned else 0 :]
        epochs = [entry.seq for entry in since if isinstance(entry, EpochEntry)]
        assert self.row.epoch_seq == (epochs[-1] if epochs else 0)
        forks = [e.seq for e in self.naive.entries if isinstance(e, ForkedEntry)]
        calls = [e for e in self.naive.entries if isinstance(e, ModelOutputEntry) and e.usage]
        own = [entry for entry in calls if entry.seq > (forks[-1] if forks else 0)]
        figures = (len(own), 3 * len(own), len(own), 0)
        assert self.row.billed == ((("", *figures),) if own else ())

    @invariant()
    def no_window_says_anything_else(self) -> None:
        for window in self.windows:
            whole = self.history
            for fact in FACTS:
                assert getattr(window, fact) == getattr(whole, fact), fact
            assert window.unfinished_turns() == whole.unfinished_turns()
            self.rollbacks_are_the_same_or_out_of_reach(window)
            for seq in range(-1, whole.head_seq + 1):
                assert window.entries_after(seq) in (None, self.naive.entries[max(seq, 0) :])
            assert window.entries_after(whole.head_seq) == []
            if window.is_in_reach:
                self.what_it_holds_is_the_end_of_the_whole(window)
            else:
                self.it_says_so(window)

    def what_it_holds_is_the_end_of_the_whole(self, window: ConversationHistory) -> None:
        whole = self.history
        assert window.system_instruction == whole.system_instruction
        assert window.notebook == whole.notebook
        assert window.widget_states == whole.widget_states
        assert _newest_summary(window) == _newest_summary(whole)
        assert end_of(list(whole.active), window.first_seq) == end_of(
            list(window.active), window.first_seq
        )
        self.contexts_are_the_end_of_the_whole(window)

    def it_says_so(self, window: ConversationHistory) -> None:
        for fact in ("active", "epoch", "compactions", "quarantined"):
            with pytest.raises(NotInReach):
                getattr(window, fact)
        for ask in (window.snapshot, window.get_context, lambda: context_entries(window, "t1")):
            with pytest.raises(NotInReach):
                ask()
        for fact in ("system_instruction", "notebook", "widget_states"):
            with suppress(NotInReach):
                assert getattr(window, fact) == getattr(self.history, fact), fact
        for turn_id in TURNS:
            if window.turn_state(turn_id) is not None:
                assert window.turn_state(turn_id) == self.history.turn_state(turn_id)
                assert window.end_of_turn(turn_id) == self.history.end_of_turn(turn_id)
                assert window.open_tool_calls(turn_id) == self.history.open_tool_calls(turn_id)

    def contexts_are_the_end_of_the_whole(self, window: ConversationHistory) -> None:
        whole = self.history
        held = {entry.turn_id for entry in window.active}
        for turn_id in [*(turn for turn in TURNS if turn in held), "yet to come"]:
            assert window.turn_state(turn_id) == whole.turn_state(turn_id)
            assert window.end_of_turn(turn_id) == whole.end_of_turn(turn_id)
            assert window.open_tool_calls(turn_id) == whole.open_tool_calls(turn_id)
            seen, all_of_it = context_entries(window, turn_id), context_entries(whole, turn_id)
            assert seen == all_of_it[len(all_of_it) - len(seen) :]
        cleared = [e.seq for e in window.active if isinstance(e, ClearEntry)]
        if window.first_seq == 1 or (cleared and cleared[-1] >= window.first_seq):
            assert context_entries(window, "yet to come") == context_entries(whole, "yet to come")
            assert window.get_context() == whole.get_context()

    def rollbacks_are_the_same_or_out_of_reach(self, window: ConversationHistory) -> None:
        for to_seq in range(self.history.head_seq + 1):
            try:
                draft = window.rollback_to(to_seq)
            except NotInReach:
                assert len(window.entries) < window.head_seq
            except BadEntry:
                with pytest.raises(BadEntry):
                    self.history.rollback_to(to_seq)
            else:
                assert draft == self.history.rollback_to(to_seq)
        for turn_id in TURNS:
            undo = methodcaller("rollback_turns", [turn_id])
            self.is_the_same_or_out_of_reach(window, undo)
        self.is_the_same_or_out_of_reach(window, ConversationHistory.redo)

    def is_the_same_or_out_of_reach(
        self, window: ConversationHistory, ask: Callable[[ConversationHistory], RollbackEntry]
    ) -> None:
        try:
            draft = ask(window)
        except NotInReach:
            assert len(window.entries) < window.head_seq
        except BadEntry as error:
            if "no longer kept" not in str(error):
                with pytest.raises(BadEntry):
                    ask(self.history)
        else:
            assert draft == ask(self.history)


def _newest_summary(history: ConversationHistory) -> list[tuple[int, str, int, int]]:
    """Where it was trimmed, a checkpoint quotes it: without id and time."""
    return [
        (entry.seq, entry.content, entry.from_seq, entry.through_seq)
        for entry in history.compactions[-1:]
    ]


def _can_follow(window: ConversationHistory, entry: Entry) -> bool:
    return not isinstance(entry, RollbackEntry) or window.active_after(entry) is not None


TestHistoryMachine = HistoryMachine.TestCase
TestHistoryMachine.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
