"""The slash commands of the line mode: those of the full-screen chat, and what differs.

There a list is chosen from and an older message scrolled to; here both are
printed, and a command with an argument does the rest.
"""

from __future__ import annotations

from nplt_client.chat_vocabulary import help_rows, order_in
from nplt_client.errors import RequestRefused
from nplt_client.finding import hits_text
from nplt_client.fullscreen.commands import COMMANDS as SCREEN_COMMANDS
from nplt_client.fullscreen.commands import Run, check_reachable
from nplt_client.fullscreen.floor import Floor
from nplt_client.showing import history_text
from nplt_client.tables import pairs
from nplt_protocol.replies import SearchHit

_HITS_MAX = 50
_MESSAGES_SHOWN = 20

KEYS_HELP = (
    ("//…", "a text that begins with a slash"),
    ("Enter", "sends; Ctrl+J, Alt+Enter or \\ Enter: a new line"),
    ("Up, Down, Ctrl+R", "earlier prompts"),
    ("Ctrl+G", "write in your editor"),
    ("Esc, Ctrl+C", "stop the answer; Ctrl+C twice or Ctrl+D: leave"),
)


async def run_command(chat: Floor, line: str) -> None:
    order = order_in(line, COMMANDS)
    check_reachable(chat, order.name)
    await COMMANDS[order.name](chat, order.argument)


async def _help(chat: Floor, argument: str) -> None:
    await chat.tell(pairs([*help_rows(COMMANDS), *KEYS_HELP]))


async def _history(chat: Floor, argument: str) -> None:
    if argument and not (argument.isdecimal() and int(argument)):
        raise RequestRefused("/history takes a number of messages.", code="malformed")
    page = await chat.visit.client.history(int(argument or _MESSAGES_SHOWN))
    await chat.tell(history_text(page))


async def _search(chat: Floor, argument: str) -> None:
    hits: list[SearchHit] = []
    async for hit in chat.visit.client.search(argument):
        hits.append(hit)
        if len(hits) == _HITS_MAX:
            break
    await chat.tell(hits_text(hits) if hits else f"nothing was found for {argument!r}")


COMMANDS: dict[str, Run] = SCREEN_COMMANDS | {
    "help": _help,
    "history": _history,
    "search": _search,
}
