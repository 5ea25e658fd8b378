"""Lives of conversations, at random: all that can happen to what a model is shown."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from hypothesis import strategies as st
from tests.server.widgets.widget_stage import Stage, now

from nplt_storage.entries import ClearEntry, EpochEntry, FaultEntry, ForkedEntry, QuarantineEntry

PICKS = 8
LONG = "A text long enough to have a gist. " * 8


class Life:
    """Each event is a number: what happens, and to which. What can't happen doesn't."""

    def __init__(self, turns_max: int | None = None) -> None:
        self.stage = Stage(turns_max)
        self.spoke: str | None = None
        """The turn whose model was just told the state of things, if one was."""
        self._ids = count(1)

    def happens(self, event: int) -> None:
        self.spoke = None
        EVENTS[event // PICKS % len(EVENTS)](self, event % PICKS)

    @property
    def running(self) -> str | None:
        unfinished = self.stage.history.unfinished_turns()
        return unfinished[0].turn_id if unfinished else None

    def ask(self, pick: int) -> None:
        turn_id = f"t{next(self._ids)}"
        self.spoke = None if self.running else turn_id
        self.stage.ask(turn_id, LONG if pick == 0 else f"prompt {pick}")

    def answer(self, pick: int) -> None:
        if self.running and not self.stage.history.open_tool_calls(self.running):
            self.stage.answer(self.running, f"answer {pick}", call=next(self._ids))

    def use_tool(self, pick: int) -> None:
        """A call, perhaps a change meanwhile, and the result."""
        if not self.running:
            return
        ids = [f"c{next(self._ids)}" for _ in range(1 + pick % 2)]
        self.stage.call_tools(self.running, *ids, call=next(self._ids))
        if pick > 2:
            self.note(pick)
        self.spoke = self.running
        self.stage.give_results(self.running, *ids, text=LONG if pick == 7 else "ok")

    def fail(self, pick: int) -> None:
        unfinished = self.stage.history.unfinished_turns()
        if unfinished:
            turn_id = unfinished[pick % len(unfinished)].turn_id
            self.stage.put(FaultEntry(turn_id=turn_id, content="no", code="x", state="failed"))

    def note(self, pick: int) -> None:
        texts = ("", "tea", "coffee", "tea")
        now(self.stage.state.update_memory_notebook(texts[pick % 4], turn_id=self.running))

    def list_todo(self, pick: int) -> None:
        if pick < 4:
            self.stage.use("todo", action="add", texts=[f"step {pick}"])
        else:
            self.stage.use("todo", action="clear")

    def instruct(self, pick: int) -> None:
        now(self.stage.state.set_system_instruction(f"be {pick % 3}"))

    def begin_epoch(self, pick: int) -> None:
        self.stage.put(EpochEntry(reason="asked", screen=self.stage.state.screen()))

    def clear(self, pick: int) -> None:
        self.stage.put(ClearEntry())

    def roll_back(self, pick: int) -> None:
        history = self.stage.history
        to_seq = history.head_seq - 1 - pick
        if to_seq > 0 and not history.unfinished_turns():
            self.stage.put(history.rollback_to(to_seq))

    def quarantine(self, pick: int) -> None:
        target = self.stage.history.head_seq - pick
        if target > 0:
            self.stage.put(QuarantineEntry(target_seq=target, code="x", content="odd"))

    def fork(self, pick: int) -> None:
        head = self.stage.history.head_seq
        if head:
            self.stage.put(ForkedEntry(from_session_id="s0", at_seq=head))


EVENTS: tuple[Callable[[Life, int], None], ...] = (
    Life.ask,
    Life.ask,
    Life.answer,
    Life.answer,
    Life.use_tool,
    Life.note,
    Life.list_todo,
    Life.instruct,
    Life.begin_epoch,
    Life.clear,
    Life.fail,
    Life.roll_back,
    Life.quarantine,
    Life.fork,
)

events = st.lists(st.integers(0, PICKS * len(EVENTS) - 1), min_size=5, max_size=30)
windows = st.sampled_from([None, None, 1, 2])
