"""`nplt fork | redact | undelete`: one conversation, one change, and gone."""

from __future__ import annotations

import sys

import click

from nplt_client.link import Link
from nplt_client.opening import open_for_command
from nplt_client.sanitize import sanitize_line
from nplt_client.tables import shorten
from nplt_client.terminal import is_terminal, say
from nplt_protocol.replies import Attached, MessageRange, Redacted, SessionCreated, SessionRow
from nplt_protocol.requests import (
    HistoryRequest,
    Redact,
    SessionFork,
    SessionSwitch,
    SessionUpdate,
)

_SHOWN_WIDTH = 60


def fork(wanted: str, *, server: str | None, at_seq: int | None, name: str | None) -> None:
    with open_for_command(server) as link:
        found = link.request(SessionSwitch(session_id=wanted), Attached)
        asked = SessionFork(session_id=found.session_id, at_seq=at_seq, name=name)
        made = link.request(asked, SessionCreated)
    print(made.session_id)
    say(f"{made.name!r} begins like {found.name!r}")


def undelete(session_id: str, *, server: str | None) -> None:
    with open_for_command(server) as link:
        row = link.request(SessionUpdate(session_id=session_id, deleted=False), SessionRow)
    say(f"{row.session_id} ({row.name}) is back")


def redact(wanted: str, seq: int, *, server: str | None, is_sure: bool) -> None:
    with open_for_command(server) as link:
        found = link.request(SessionSwitch(session_id=wanted), Attached)
        if not is_sure:
            _confirm(_beginning(link, found.session_id, seq), found.name, seq)
        link.request(Redact(seq=seq, session_id=found.session_id), Redacted)
    say(f"what entry {seq} of {found.name!r} said is erased")


def _beginning(link: Link, session_id: str, seq: int) -> str:
    asked = HistoryRequest(session_id=session_id, seq=seq, length=4 * _SHOWN_WIDTH)
    return link.request(asked, MessageRange).content


def _confirm(words: str, name: str, seq: int) -> None:
    """Nobody is there to be asked: then it must have been said with the command."""
    if not is_terminal(sys.stdin):
        raise click.UsageError("This erases for good: say --yes, or run it in a terminal.")
    say(f"Entry {seq} of {name!r}: {shorten(sanitize_line(words), _SHOWN_WIDTH)}")
    sys.stderr.write("Erase it for good? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise click.Abort
