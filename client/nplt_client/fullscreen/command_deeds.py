"""The commands that take more than a request: going back, copying, files."""

from __future__ import annotations

import re
from pathlib import Path

from nplt_client.errors import RequestRefused
from nplt_client.fullscreen.exporting import all_pages, file_name, markdown_of, write_anew
from nplt_client.fullscreen.floor import Floor
from nplt_client.fullscreen.safe_text import safe_line
from nplt_protocol.json_values import JsonObject

_CODE_BLOCK = re.compile(r"^ {0,3}(```+|~~~+)[^\n]*\n(.*?)^ {0,3}\1", re.MULTILINE | re.DOTALL)


def code_blocks(markdown: str) -> list[str]:
    return [found.group(2) for found in _CODE_BLOCK.finditer(markdown)]


async def copy(chat: Floor, argument: str) -> None:
    """By OSC 52: the terminal's clipboard, also over ssh."""
    answers = [turn.answer for turn in chat.transcript.turns if turn.answer]
    if argument == "code":
        blocks = [block for answer in answers for block in code_blocks(answer)]
        if not blocks:
            raise RequestRefused("There is no code to copy.", code="not_found")
        chat.copy(blocks[-1])
        return
    if argument and not argument.isdecimal():
        raise RequestRefused("/copy takes a number, or code.", code="malformed")
    place = int(argument or 1)
    if not 1 <= place <= len(answers):
        raise RequestRefused("There is no such answer on the screen.", code="not_found")
    chat.copy(answers[-place])


async def undo(chat: Floor, argument: str) -> None:
    last = await _last_prompt(chat)
    await _take_back(chat, last)
    chat.remark(f"taken back: {safe_line(last.get('content'), 60)}")


async def edit(chat: Floor, argument: str) -> None:
    """Taken back only when the new text is sent."""
    last = await _last_prompt(chat)
    chat.visit.replace_from = _seq(last)
    chat.fill(str(last.get("content") or ""))
    chat.remark("sending this replaces your last message; Ctrl+C leaves it as it was")


async def retry(chat: Floor, argument: str) -> None:
    last = await _last_prompt(chat)
    chat.visit.replace_from = _seq(last)
    await chat.ask(str(last.get("content") or ""))


async def _last_prompt(chat: Floor) -> JsonObject:
    newest = (await chat.visit.client.history(1, roles=("user",))).messages
    if not newest:
        raise RequestRefused("There is no message of yours yet.", code="not_found")
    return newest[-1]


async def _take_back(chat: Floor, message: JsonObject) -> None:
    await chat.visit.client.roll_back(_seq(message) - 1)  # the event makes the screen read again


def _seq(message: JsonObject) -> int:
    seq = message.get("seq")
    return seq if isinstance(seq, int) else 0


async def attach(chat: Floor, argument: str) -> None:
    stored = await chat.visit.client.upload(argument)
    chat.visit.attachments.append(stored.file_id)
    chat.remark(f"{Path(argument).name} ({stored.size:,} bytes) goes with your next message")


async def export(chat: Floor, argument: str) -> None:
    lines: list[str] = [f"# {chat.visit.name}\n"]
    async for page in all_pages(chat.visit.client):
        for message in page.messages:
            lines.extend(markdown_of(message))
    path = write_anew(argument or file_name(chat.visit.name), "\n".join(lines))
    chat.remark(f"written to {path}")


async def fork(chat: Floor, argument: str) -> None:
    origin = chat.visit.name or chat.visit.client.session_id
    created = await chat.visit.client.fork(name=argument or None)
    await chat.go(chat.visit.client.switch(created.session_id))
    await chat.tell(f"this is a copy of {origin!r}, which stays as it is")


async def system(chat: Floor, argument: str) -> None:
    client = chat.visit.client
    if argument:
        await client.update(system=argument)
        chat.remark("the system message is set")
        return
    page = await client.history(200, roles=("system",))
    newest = page.messages[-1].get("content") if page.messages else None
    await chat.tell(str(newest) if newest else "there is no system message")
