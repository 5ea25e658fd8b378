"""One turn as it is told: what of it is on the paper, and what is still to come."""

from __future__ import annotations

from nplt_client.fullscreen.changes import PromptShown, ToolShown
from nplt_client.fullscreen.safe_text import safe_line
from nplt_client.linemode.answer_flow import AnswerFlow
from nplt_client.linemode.paper import Paper

_ARGUMENTS_WIDTH = 60
_RESULT_WIDTH = 100


class TurnTold:
    def __init__(self, paper: Paper) -> None:
        self.prompt: PromptShown | None = None
        self._paper = paper
        self._is_prompt_told = False
        self._flows: dict[int, AnswerFlow] = {}
        self._reasoning: dict[int, str] = {}
        self._thought = ""
        """The line of reasoning that is not finished."""
        self._arguments: dict[str, str] = {}
        self._tools_told: set[str] = set()

    @property
    def answer(self) -> str:
        texts = (self._flows[call].text for call in sorted(self._flows))
        return "\n\n".join(text for text in texts if text.strip())

    @property
    def has_begun(self) -> bool:
        return self._is_prompt_told or self.prompt is None

    @property
    def unfinished(self) -> str:
        return self._thought + "".join(flow.unfinished for flow in self._flows.values())

    def begin(self, who: str) -> None:
        if self.prompt is not None and not self._is_prompt_told:
            self._is_prompt_told = True
            self._paper.said(who, self.prompt.text, is_mine=self.prompt.is_mine)

    def grow(self, call: int, piece: str) -> None:
        self._print(self._flow(call).grow(piece))

    def tell_again(self, call: int, text: str) -> None:
        flow = self._flow(call)
        flow.tell_again()
        self._print(flow.grow(text))

    def stand(self, call: int, text: str) -> None:
        if text or call in self._flows:
            self._print(self._flow(call).stand(text))

    def reason(self, call: int, piece: str) -> None:
        self._reasoning[call] = self._reasoning.get(call, "") + piece
        *lines, self._thought = (self._thought + piece).split("\n")
        for line in filter(str.strip, lines):
            self._paper.remark(line)

    def reasoned(self, call: int, text: str) -> None:
        """All of it; most was told."""
        told = self._reasoning.get(call, "")
        if text.startswith(told):
            self.reason(call, text[len(told) :])
            self._end_thought()

    def use_tool(self, tool: ToolShown) -> None:
        if tool.arguments:
            self._arguments[tool.tool_call_id] = tool.arguments
        if tool.status == "pending" or tool.tool_call_id in self._tools_told:
            return
        self._tools_told.add(tool.tool_call_id)
        self.finish_texts()
        self._paper.remark(_tool_line(tool, self._arguments.get(tool.tool_call_id, "{}")))

    def finish_texts(self) -> None:
        self._end_thought()
        for flow in self._flows.values():
            self._print(flow.end())

    def _flow(self, call: int) -> AnswerFlow:
        if call not in self._flows:
            self.finish_texts()
            self._flows[call] = AnswerFlow()
        return self._flows[call]

    def _end_thought(self) -> None:
        if self._thought.strip():
            self._paper.remark(self._thought)
        self._thought = ""

    def _print(self, blocks: list[str]) -> None:
        if blocks:
            self._end_thought()
        for block in blocks:
            self._paper.answer(block)


def _tool_line(tool: ToolShown, arguments: str) -> str:
    given = "" if arguments == "{}" else f" {safe_line(arguments, _ARGUMENTS_WIDTH)}"
    time = "" if tool.seconds is None else f", {tool.seconds:.1f} s"
    result = f": {safe_line(tool.result, _RESULT_WIDTH)}" if tool.result.strip() else ""
    return f"⚙ {tool.name}{given} · {tool.status}{time}{result}"
