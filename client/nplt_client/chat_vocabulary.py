"""The words one can say to a chat itself: lines that begin with a slash. Pure.

One table for both kinds of chat, so that a command is called the same and
explained the same wherever it is typed. `//` at the beginning is an escaped
slash. What a command does is the business of the chat it is typed in.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass

from nplt_client.errors import RequestRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    argument: str
    """`[…]` may be left out."""
    help: str


VOCABULARY: dict[str, Word] = {
    "help": Word(argument="", help="this list"),
    "new": Word(argument="[NAME]", help="begin a new conversation"),
    "sessions": Word(argument="[TEXT]", help="list conversations"),
    "switch": Word(argument="ID|NAME", help="go to a conversation"),
    "rename": Word(argument="NAME", help="rename this conversation"),
    "delete": Word(argument="[ID|NAME]", help="move one to the trash (this one)"),
    "model": Word(argument="[NAME]", help="show or switch the model"),
    "system": Word(argument="[TEXT]", help="show or set the system message"),
    "history": Word(argument="[N]", help="the last messages"),
    "search": Word(argument="TEXT", help="find words in all conversations"),
    "clear": Word(argument="", help="show the model nothing older"),
    "undo": Word(argument="", help="take back your last message and its answer"),
    "edit": Word(argument="", help="change your last message and ask again"),
    "retry": Word(argument="", help="ask your last message again"),
    "fork": Word(argument="[NAME]", help="go on in a copy of this conversation"),
    "context": Word(argument="[TEXT]", help="what the model would be sent"),
    "compact": Word(argument="", help="show the model older turns in less detail"),
    "usage": Word(argument="", help="tokens and cost of this conversation"),
    "tools": Word(argument="", help="what the model may call"),
    "allow": Word(argument="[always]", help="let the tool that waits for it be run"),
    "deny": Word(argument="[always]", help="don't let it be run"),
    "status": Word(argument="", help="how the server is"),
    "attach": Word(argument="FILE", help="send a file with the next message"),
    "copy": Word(argument="[N|code]", help="copy an answer, the N-th from the end, or its code"),
    "export": Word(argument="[FILE]", help="write this conversation to a Markdown file"),
    "raw": Word(argument="", help="show answers as they are written, or as Markdown"),
    "theme": Word(argument="[NAME]", help="light, dark, or the terminal's own colours"),
    "reconnect": Word(argument="", help="try the server again now"),
    "quit": Word(argument="", help="leave"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A command as it was typed."""

    name: str
    argument: str


def prompt_in(line: str) -> str | None:
    """What is meant for the model; None: the line is a command."""
    if line.startswith("//"):
        return line[1:]
    return None if line.startswith("/") else line


def order_in(line: str, known: Collection[str]) -> Order:
    """`known`: what this chat can do. Anything else is answered with the nearest name."""
    name, _, argument = line[1:].partition(" ")
    if name.lower() not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f" Did you mean /{near[0]}?" if near else ""
        raise RequestRefused(
            f"There is no /{name}.{hint} /help lists all; // begins a text with a slash.",
            code="not_found",
        )
    name, argument = name.lower(), argument.strip()
    wanted = VOCABULARY[name].argument
    if wanted and not wanted.startswith("[") and not argument:
        raise RequestRefused(f"/{name} needs {wanted}.", code="malformed")
    if argument and not wanted:
        raise RequestRefused(f"/{name} takes nothing: nothing was done.", code="malformed")
    return Order(name=name, argument=argument)


def help_rows(known: Collection[str]) -> list[tuple[str, str]]:
    return [
        (f"/{name} {word.argument}".rstrip(), word.help)
        for name, word in VOCABULARY.items()
        if name in known
    ]
