"""A model that edits a file with whatever tool its client offers, if the prompt says EDIT."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping

from nplt_server.context.messages import ModelInputMessage, ToolResultsMessage
from nplt_server.providers import LlmRequest, Stopped, TextPiece, ToolCallPiece
from nplt_server.providers.offline import Piece
from nplt_server.tools import ToolDescription

CONTENT = "edited by a model"
_PATHS = ("filePath", "filepath", "file_path", "path")
_SHELLS = ("cmd", "command")


async def answer(request: LlmRequest) -> AsyncIterator[Piece]:
    last = request.context[-1]
    if isinstance(last, ToolResultsMessage):
        yield TextPiece(text="done")
        yield Stopped(reason="end")
        return
    prompt = last.content if isinstance(last, ModelInputMessage) else ""
    call = _edit(request.tools, prompt.partition("EDIT ")[2].split("\n")[0].strip('" '))
    if "EDIT " not in prompt or call is None:
        yield TextPiece(text=prompt.splitlines()[-1] if prompt else "nothing")
        yield Stopped(reason="end")
        return
    name, arguments = call
    yield ToolCallPiece(index=0, tool_name=name, arguments=json.dumps(arguments))
    yield Stopped(reason="tool_calls")


def _edit(tools: tuple[ToolDescription, ...], path: str) -> tuple[str, Mapping[str, str]] | None:
    """The call of a tool that writes a file, or else of a shell."""
    shell = None
    for tool in tools:
        fields = tool.parameters.get("properties")
        names = fields if isinstance(fields, dict) else {}
        place = next((each for each in _PATHS if each in names), None)
        if place and "content" in names:
            return tool.name, {place: path, "content": CONTENT}
        if command := next((each for each in _SHELLS if each in names), None):
            text = {command: f"echo {CONTENT} > {path}"}
            shell = shell or (
                tool.name,
                text | ({"description": "x"} if "description" in names else {}),
            )
    return shell
