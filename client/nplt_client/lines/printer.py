"""Prints changes to the scrollback: in order, each thing once.

A prompt is printed when its turn begins. This module reads no input and has no connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import assert_never

from nplt_client.chat import changes
from nplt_client.lines.printed_text import PrintedText
from nplt_client.render.scrollback import MarkdownBlockSplitter, ScrollbackWriter
from nplt_client.render.text import safe_line

_ARGUMENTS_WIDTH = 60
_RESULT_WIDTH = 100
TURNS_REMEMBERED = 200


class PrintedTurn:
    """One turn: the part that is printed, and the unfinished part."""

    def __init__(self, scrollback: ScrollbackWriter) -> None:
        self.prompt: changes.PromptShown | None = None
        self._scrollback = scrollback
        self._is_prompt_printed = False
        self._answers: dict[int, tuple[PrintedText, MarkdownBlockSplitter]] = {}
        """The printed text and the unfinished block of each call."""
        self._reasoning: dict[int, str] = {}
        self._reasoning_line = ""
        """The unfinished line of reasoning."""
        self._arguments: dict[str, str] = {}
        self._tools_printed: set[str] = set()

    @property
    def answer(self) -> str:
        texts = (self._answers[call][0].text for call in sorted(self._answers))
        return "\n\n".join(text for text in texts if text.strip())

    @property
    def waiting(self) -> changes.PromptShown | None:
        """The prompt, until it is printed."""
        return None if self._is_prompt_printed else self.prompt

    @property
    def unfinished(self) -> str:
        return self._reasoning_line + "".join(
            splitter.unfinished for _, splitter in self._answers.values()
        )

    def begin(self, name_of_others: Callable[[], str]) -> None:
        if prompt := self.waiting:
            self._is_prompt_printed = True
            if prompt.continues:
                self._scrollback.remark("the answer goes on:")
                return
            who = "you" if prompt.is_mine else name_of_others()
            self._scrollback.prompt(who, prompt.shown, is_mine=prompt.is_mine)

    def apply(self, change: changes.TurnChange) -> None:
        match change:
            case changes.TextGrew(kind="answer"):
                printed, splitter = self._answer_of(change.call)
                self._grow(splitter, printed.grow(change.piece))
            case changes.TextGrew():
                self._reason(change.call, change.piece)
            case changes.TextReplaced(kind="answer"):
                self._replace(change)
            case changes.TextReplaced():
                known = self._reasoning.get(change.call, "")
                if change.text.startswith(known):  # otherwise it differs from the printed text
                    self._reason(change.call, change.text[len(known) :])
                    self._end_reasoning()
            case changes.ToolShown():
                self._use_tool(change)
            case changes.TurnEnded():
                self._finish_texts()
                if change.words:
                    self._scrollback.remark(change.words, is_error=change.state == "failed")
                elif change.model:
                    self._scrollback.remark(change.model)
            case changes.PromptShown() | changes.TurnBegan():
                pass
            case _:
                assert_never(change)

    def _answer_of(self, call: int) -> tuple[PrintedText, MarkdownBlockSplitter]:
        if call not in self._answers:
            self._finish_texts()
            self._answers[call] = (PrintedText(), MarkdownBlockSplitter())
        return self._answers[call]

    def _grow(self, splitter: MarkdownBlockSplitter, text: str) -> None:
        if text:
            self._end_reasoning()
        self._scrollback.answer(splitter.feed(text))

    def _replace(self, change: changes.TextReplaced) -> None:
        if not change.text and change.call not in self._answers:
            return
        printed, splitter = self._answer_of(change.call)
        if not change.is_stored:
            self._grow(splitter, printed.begin_again(change.text))
            return
        self._end_reasoning()
        new = printed.finish(change.text)
        if new is None:
            self._scrollback.answer(splitter.end())
            self._scrollback.remark("· it is stored differently:")
            new = change.text
        self._scrollback.answer([*splitter.feed(new), *splitter.end()])

    def _reason(self, call: int, piece: str) -> None:
        self._reasoning[call] = self._reasoning.get(call, "") + piece
        *lines, self._reasoning_line = (self._reasoning_line + piece).split("\n")
        for line in filter(str.strip, lines):
            self._scrollback.remark(line)

    def _end_reasoning(self) -> None:
        if self._reasoning_line.strip():
            self._scrollback.remark(self._reasoning_line)
        self._reasoning_line = ""

    def _use_tool(self, tool: changes.ToolShown) -> None:
        if tool.arguments:
            self._arguments[tool.tool_call_id] = tool.arguments
        if tool.status == "pending" or tool.tool_call_id in self._tools_printed:
            return
        self._tools_printed.add(tool.tool_call_id)
        self._finish_texts()
        arguments = self._arguments.get(tool.tool_call_id, "{}")
        given = "" if arguments == "{}" else f" {safe_line(arguments, _ARGUMENTS_WIDTH)}"
        time = "" if tool.seconds is None else f", {tool.seconds:.1f} s"
        result = f": {safe_line(tool.result, _RESULT_WIDTH)}" if tool.result.strip() else ""
        self._scrollback.remark(f"⚙ {tool.name}{given} · {tool.status}{time}{result}")

    def _finish_texts(self) -> None:
        self._end_reasoning()
        for _, splitter in self._answers.values():
            self._scrollback.answer(splitter.end())


class ChangePrinter:
    """Prints changes to the scrollback: in order, each thing once.

    A prompt is printed when its turn begins; while it is queued it is one of the status rows.
    So the scrollback reads as question, answer, question, answer, also when people type ahead.
    Changes of a turn that has ended are ignored.
    """

    def __init__(self, scrollback: ScrollbackWriter, name_of_others: Callable[[], str]) -> None:
        self.answers: deque[str] = deque(maxlen=TURNS_REMEMBERED)
        self._scrollback = scrollback
        self._name_of_others = name_of_others
        self.unsent: dict[str, str] = {}
        """Our own prompts, by message id, until the server sends an event about them."""
        self._open: dict[str, PrintedTurn] = {}
        self._ended: deque[str] = deque(maxlen=TURNS_REMEMBERED)

    @property
    def unfinished(self) -> str:
        return "".join(turn.unfinished for turn in self._open.values())

    @property
    def waiting(self) -> list[str]:
        waiting = (turn.waiting for turn in self._open.values())
        accepted = [prompt.text for prompt in waiting if prompt and not prompt.continues]
        return [*accepted, *self.unsent.values()]

    def start_over(self) -> None:
        """Drops all turns, after a switch to another conversation."""
        self._open.clear()
        self._ended.clear()
        self.answers.clear()

    def catch_up(self, turns: changes.Turns, waiting: Container[str] = ()) -> None:
        """Prints what is missing of stored turns. `waiting` are the queued turns."""
        for turn_id, turn_changes in turns:
            for change in turn_changes:
                if not (isinstance(change, changes.TextReplaced) and change.kind == "reasoning"):
                    self.apply(change)
            if turn_id not in waiting and (turn := self._open.get(turn_id)):
                turn.begin(self._name_of_others)

    def knows(self, turn_id: str) -> bool:
        return turn_id in self._open or turn_id in self._ended

    def apply(self, change: changes.TurnChange) -> None:
        if change.turn_id in self._ended:
            return
        turn = self._open.setdefault(change.turn_id, PrintedTurn(self._scrollback))
        if isinstance(change, changes.PromptShown):
            turn.prompt = turn.prompt or change
            self.unsent.pop(change.message_id or "", None)
            return
        was_taken_back = isinstance(change, changes.TurnEnded) and not change.has_begun
        if not was_taken_back:
            turn.begin(self._name_of_others)
            turn.apply(change)
        if isinstance(change, changes.TurnEnded):
            if not was_taken_back:
                self.answers.append(turn.answer)
            self._ended.append(change.turn_id)
            del self._open[change.turn_id]
