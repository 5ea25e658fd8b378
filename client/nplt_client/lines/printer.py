"""Prints changes to the scrollback: in order, each thing once.

A prompt is printed when its turn begins. Markdown is split into blocks, and each is
formatted when it can't change any more. This module reads no input and has no connection.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Container, Iterable
from functools import cache
from io import StringIO
from typing import assert_never

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from nplt_client.chat import changes
from nplt_client.lines.printed_text import PrintedText
from nplt_client.render.markdown_rules import draw_boxes, keep_line_breaks
from nplt_client.render.text import safe_line, width_of

_FENCE = re.compile(r" {0,3}(?:```|~~~)")
_BEGINS_BY_ITSELF = re.compile(r"```|~~~|#{1,6}[ \t\n]")
"""The beginning of a block that needs no empty line before it."""
_IS_TEXT = re.compile(r"[^\W\d_]|\*\*\w|[\"'(“‘]")
"""The beginning of a line of text: no list item, heading or fence."""


@cache
def markdown_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False})
    for rule in (keep_line_breaks, draw_boxes):  # rich writes the targets of links
        parser.core.ruler.push(rule.__name__, rule)
    return parser.enable(["table", "strikethrough"]).disable(["reference", "image"])


class MarkdownBlockSplitter:
    """Splits growing Markdown into blocks that can't change any more.

    A block is returned when the next one has begun or its fence is closed, since printed text
    can't be changed. The Markdown parser decides where that is, and runs only where a block can
    begin, so that the cost is linear in the length of the answer. The results of `feed` and
    `end`, joined, are the input.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        """The lines of the unfinished block, with their line ends."""
        self._begun = ""
        """The unfinished line."""
        self._closing: re.Pattern[str] | None = None
        """The pattern of the closing line, inside a fence."""

    @property
    def unfinished(self) -> str:
        return "".join(self._lines) + self._begun

    def feed(self, piece: str) -> list[str]:
        *whole, self._begun = (self._begun + piece).split("\n")
        blocks: list[str] = []
        for line in whole:
            blocks.extend(self._add(f"{line}\n"))
        # The first word of a paragraph already ends the block before it.
        after_empty = bool(self._lines) and not self._lines[-1].strip()
        if self._closing is None and after_empty and _IS_TEXT.match(self._begun):
            self._lines.append(self._begun)
            blocks.extend(self._cut_before_last())
            self._lines.pop()
        return blocks

    def end(self) -> list[str]:
        left, self._lines, self._begun, self._closing = self.unfinished, [], "", None
        return [left] if left else []

    def _add(self, line: str) -> list[str]:
        self._lines.append(line)
        if self._closing is not None:
            if not self._closing.fullmatch(line):
                return []
            block, self._lines, self._closing = "".join(self._lines), [], None
            return [block]
        if line[0].isspace():
            return []
        after_empty = len(self._lines) > 1 and not self._lines[-2].strip()
        may_begin_block = after_empty or _BEGINS_BY_ITSELF.match(line)
        return self._cut_before_last() if may_begin_block else []

    def _cut_before_last(self) -> list[str]:
        tokens = markdown_parser().parse("".join(self._lines))
        outermost = [(token, token.map[0]) for token in tokens if token.level == 0 and token.map]
        if not outermost:
            return []
        last, start = outermost[-1]
        before, self._lines = self._lines[:start], self._lines[start:]
        blocks = ["".join(before)] if before else []
        if last.type == "fence" and _FENCE.match(self._lines[0]):
            mark = re.escape(last.markup[0])
            closing = re.compile(rf" {{0,3}}{mark}{{{len(last.markup)},}}[ \t]*\n")
            # The parser did not run at the first line if that is indented.
            if len(self._lines) > 1 and closing.fullmatch(self._lines[-1]):
                block, self._lines = "".join(self._lines), []
                return [*blocks, block]
            self._closing = closing
        return blocks


_CODE_THEMES = {"dark": "ansi_dark", "light": "ansi_light", "terminal": "ansi_dark"}
_CODE_INDENT = 2
_STYLES = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold italic",
        "markdown.code": "cyan",
        "markdown.code_block": "none",
        "markdown.link": "blue",
        "markdown.link_url": "blue underline",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)


class _LeftHeading(Heading):
    LEVEL_ALIGN = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class _IndentedCode(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        syntax = Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True)
        yield Padding(syntax, (0, 0, 0, _CODE_INDENT))


class _Answer(Markdown):
    elements = Markdown.elements | {
        "heading_open": _LeftHeading,
        "fence": _IndentedCode,
        "code_block": _IndentedCode,
    }

    def __init__(self, text: str, code_theme: str) -> None:
        super().__init__("", code_theme=code_theme, hyperlinks=False)
        self.parsed = markdown_parser().parse(text)


def _trimmed(line: Iterable[Segment]) -> list[Segment]:
    """Removes the spaces that pad the line to the width."""
    kept = list(line)
    while kept:
        last = kept.pop()
        if words := last.text.rstrip(" "):
            return [*kept, Segment(words, last.style, last.control)]
    return []


WIDTH_MIN = 20


class ScrollbackWriter:
    """Prints texts with an empty line between them, and remarks without one.

    `flush` writes all output at once, so that the input below it is redrawn only once.
    """

    def __init__(self, put: Callable[[str], None], columns: Callable[[], int]) -> None:
        self.theme = "dark"
        self.is_raw = False
        self._put = put
        self._columns = columns
        self._ink = StringIO()
        self._console = Console(
            file=self._ink,
            force_terminal=True,
            markup=False,
            emoji=False,
            highlight=False,
            theme=_STYLES,
        )
        self._lines: list[str] = []
        self._last_was_remark: bool | None = None

    def answer(self, blocks: Iterable[str]) -> None:
        for block in filter(str.strip, blocks):
            if self.is_raw:
                self.listing(block)
            else:
                self._add(_Answer(block, _CODE_THEMES[self.theme]))

    def prompt(self, who: str, text: str, *, is_mine: bool) -> None:
        """Prints a name, and the text to the right of it."""
        name, style = f"{who} ▸ ", "bold green" if is_mine else "bold magenta"
        body = text.rstrip("\n").replace("\n", "\n" + " " * width_of(name))
        self._add(Text.assemble((name, style), body, tab_size=8))

    def listing(self, text: str) -> None:
        self._add(Text(text, tab_size=8))

    def remark(self, text: str, *, is_error: bool = False) -> None:
        style = "red" if is_error else "dim"
        self._add(Text(text, style=style, tab_size=8), is_remark=True)

    def flush(self) -> None:
        if self._lines:
            text, self._lines = "".join(self._lines), []
            self._put(text)

    def _add(self, what: RenderableType, *, is_remark: bool = False) -> None:
        if self._last_was_remark is not None and not (is_remark and self._last_was_remark):
            self._lines.append("\n")
        self._last_was_remark = is_remark
        console = self._console
        options = console.options.update(width=max(WIDTH_MIN, self._columns()))
        lines = console.render_lines(what, options, pad=False)
        self._ink.seek(0)
        self._ink.truncate()
        trimmed = (segment for line in lines for segment in (*_trimmed(line), Segment.line()))
        console.print(Segments(trimmed), end="", soft_wrap=True)
        self._lines.append(self._ink.getvalue().strip("\n") + "\n")


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
