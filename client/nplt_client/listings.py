"""The commands that look something up or change one thing, and are gone.

Each opens a link, asks, and prints: aligned text for people, `--json` for
programs (the very values of the wire). Conversations may be named by id, name
or a prefix of the id, wherever one is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator

from nplt_client.ask_json import json_text
from nplt_client.errors import RequestRefused
from nplt_client.link import Link
from nplt_client.opening import open_for_command
from nplt_client.showing import history_text, models_text, sessions_table, status_text
from nplt_client.terminal import say
from nplt_client.walking import Walk
from nplt_protocol.replies import (
    Attached,
    HistoryPage,
    ModelChoice,
    SessionDeleted,
    SessionRow,
    SessionRows,
    Status,
)
from nplt_protocol.requests import (
    HistoryRequest,
    ModelSwitch,
    SessionDelete,
    SessionList,
    SessionSwitch,
    SessionUpdate,
    StatusRequest,
)
from nplt_protocol.shapes import write

DELETE_PREFIX_MIN = 8


def print_sessions(*, server: str | None, query: str | None, as_json: bool) -> None:
    with open_for_command(server) as link:
        rows = list(_all_sessions(link, query))
    if as_json:
        print(json_text([write(row) for row in rows], pretty=True))
    elif rows:
        print(sessions_table(rows))
    else:
        say("no conversations" + (f" match {query!r}" if query else " yet"))


def _all_sessions(link: Link, query: str | None) -> Iterator[SessionRow]:
    walk, cursor = Walk(), None
    while True:
        page = link.request(SessionList(query=query, cursor=cursor, limit=100), SessionRows)
        yield from page.sessions
        cursor = walk.on(page.next_cursor)
        if cursor is None:
            return


def print_history(
    wanted: str, *, server: str | None, limit: int, before: int | None, as_json: bool
) -> None:
    with open_for_command(server) as link:
        found = link.request(SessionSwitch(session_id=wanted), Attached)
        request = HistoryRequest(session_id=found.session_id, limit=limit, before=before)
        page = link.request(request, HistoryPage)
    print(json_text(write(page), pretty=True) if as_json else history_text(page))


def print_models(*, server: str | None, as_json: bool) -> None:
    with open_for_command(server) as link:
        choice = link.request(ModelSwitch(), ModelChoice)
    print(json_text(write(choice), pretty=True) if as_json else models_text(choice))


def print_status(*, server: str | None, as_json: bool) -> None:
    with open_for_command(server) as link:
        status = link.request(StatusRequest(), Status)
    print(json_text(write(status), pretty=True) if as_json else status_text(status))


def rename(wanted: str, name: str, *, server: str | None) -> None:
    with open_for_command(server) as link:
        found = link.request(SessionSwitch(session_id=wanted), Attached)
        row = link.request(SessionUpdate(session_id=found.session_id, name=name), SessionRow)
    say(f"{row.session_id} is now called {row.name!r}")


def delete(wanted: str, *, server: str | None) -> None:
    with open_for_command(server) as link:
        found = link.request(SessionSwitch(session_id=wanted), Attached)
        check_meant(wanted, found)
        link.request(SessionDelete(session_id=found.session_id), SessionDeleted)
    say(f"{found.session_id} ({found.name}) is in the trash")


def check_meant(wanted: str, found: Attached) -> None:
    """A letter or two that happen to be unique are not enough to delete by."""
    by_prefix = wanted not in (found.session_id, found.name)
    if by_prefix and len(wanted) < DELETE_PREFIX_MIN:
        raise RequestRefused(
            f"to delete {found.name!r}, give its name or at least {DELETE_PREFIX_MIN} "
            f"characters of its id ({found.session_id})",
            code="ambiguous",
            field="session_id",
        )
