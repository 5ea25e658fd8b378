"""The commands about all conversations at once: `ps`, `watch`, `wait`, `approve`, `deny`, `later`.

`watch` and `wait` stay connected, reconnect, and miss no last state of a conversation (`Watch`).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from nplt_client.cli.commands import COMMANDS, command, session_argument
from nplt_client.cli.options import completes
from nplt_client.errors import ProviderFailed, RequestRefused, TimedOut
from nplt_client.render import reports
from nplt_client.render.terminal import print_remark
from nplt_client.render.text import dump_json, sanitize_line
from nplt_client.wire.blocking import BlockingConnection, open_for_command
from nplt_client.wire.replay import PageGuard
from nplt_protocol import messages
from nplt_protocol.codec import to_object
from nplt_protocol.messages import SessionChanged, SessionRow

if TYPE_CHECKING:  # slow to load, and needed by two commands only
    from nplt_client.client import Client

__all__ = ["COMMANDS"]

T = TypeVar("T")

_ROWS_PER_PAGE = 100


def _attention(connection: BlockingConnection) -> list[SessionRow]:
    """The rows of conversations that are not at rest or have unread answers."""
    guard, rows = PageGuard(), list[SessionRow]()
    cursor: str | None = None
    while True:
        request = messages.Watch(limit=_ROWS_PER_PAGE, cursor=cursor)
        page = connection.request(request, messages.Watching)
        rows += page.sessions
        if (cursor := guard.next_page(page.next_cursor)) is None:
            return rows


@command("nplt ps", "nplt ps --json", has_json=True)
def ps(as_json: bool, server: str | None) -> None:
    """List the conversations that run, wait, ask for an approval, failed or have a prompt for
    later."""
    with open_for_command(server) as connection:
        rows = [row for row in _attention(connection) if row.state != "idle" or row.due_at]
    if as_json:
        print(dump_json([to_object(row) for row in rows], pretty=True))
    elif rows:
        print(reports.running_table(rows))
    else:
        print_remark("nothing runs, waits, asks, failed or is due")


@command(
    "nplt watch --json",
    "nplt watch --exec ./notify.sh",
    has_json=True,
)
@click.option(
    "--exec", "runs", is_flag=True, help="run COMMAND for each change, with its JSON on stdin"
)
@click.argument("command_line", metavar="[COMMAND…]", nargs=-1, type=click.UNPROCESSED)
def watch(runs: bool, command_line: tuple[str, ...], as_json: bool, server: str | None) -> None:
    """Print a line whenever a conversation changes: it runs, ends, asks, fails …

    It begins with the conversations that are not at rest or have unread answers. With --json, each
    line is one object with session_id, what and row. Everything after --exec is the command.
    """
    if runs != bool(command_line):
        raise click.UsageError("Give the command after --exec: nplt watch --exec COMMAND…")
    show: Callable[[SessionChanged], None] = _print_json if as_json else _print_line
    if runs:
        show = _Runner(command_line)
    _with_client(server, lambda client: _watch(client, show))


watch.allow_interspersed_args = False


async def _watch(client: Client, show: Callable[[SessionChanged], None]) -> None:
    import anyio.to_thread

    async for change in client.watch():
        await anyio.to_thread.run_sync(show, change)


def _print_json(change: SessionChanged) -> None:
    print(dump_json(to_object(change)), flush=True)


def _print_line(change: SessionChanged) -> None:
    print(reports.change_line(change), flush=True)


class _Runner:
    """Runs the command once for each change, one after the other."""

    def __init__(self, command_line: Sequence[str]) -> None:
        self._command_line = command_line

    def __call__(self, change: SessionChanged) -> None:
        line = dump_json(to_object(change)) + "\n"
        try:
            done = subprocess.run(self._command_line, input=line.encode(), check=False)
        except BrokenPipeError:
            return  # the command did not read its input
        except OSError as error:
            raise click.UsageError(
                f"{self._command_line[0]} can't be run: {error.strerror}."
            ) from None
        if done.returncode:
            print_remark(f"{self._command_line[0]} ended with exit code {done.returncode}")


@command("nplt wait @last", 'nplt wait notes plans --any --timeout 60 && echo "one is done"')
@click.argument(
    "wanted",
    metavar="ID|NAME…",
    nargs=-1,
    required=True,
    shell_complete=completes("sessions"),
)
@click.option("--any", "first", is_flag=True, help="wait for the first of them, not for all")
@click.option(
    "--timeout", metavar="SECONDS", type=click.FloatRange(min=0), help="give up after that time"
)
def wait(wanted: tuple[str, ...], first: bool, timeout: float | None, server: str | None) -> None:
    """Wait until conversations are at rest, and print them.

    A conversation that asks for an approval is waited for. The exit code is 6 if a turn failed,
    and 7 after --timeout.
    """
    with open_for_command(server) as connection:  # prefixes and @last, too
        found = [
            connection.request(
                messages.SessionSwitch(session_id=each, create=False), messages.Attached
            )
            for each in wanted
        ]
    session_ids = list(dict.fromkeys(each.session_id for each in found))

    async def wait_for_rows(client: Client) -> list[SessionRow]:
        import anyio

        rows = list[SessionRow]()
        with anyio.move_on_after(timeout) as patience:
            rows = await client.wait(*session_ids, first=first)
        if patience.cancelled_caught:
            raise TimedOut(f"not at rest within {timeout:g} s")
        return rows

    rows = _with_client(server, wait_for_rows)
    for row in rows:
        print(sanitize_line(f"{row.session_id} {row.state} {row.name}"))
    sys.stdout.flush()
    if failed := [row.name for row in rows if row.state == "failed"]:
        raise ProviderFailed(f"the last turn failed in: {', '.join(failed)}")


def _decide(
    server: str | None, wanted: str, approval_id: str | None, *, allow: bool, remember: bool
) -> None:
    with open_for_command(server) as connection:
        attached = connection.request(
            messages.SessionSwitch(session_id=wanted, create=False), messages.Attached
        )
        pending = [str(each["approval_id"]) for each in attached.pending_approvals]
        if approval_id is None and len(pending) != 1:
            raise RequestRefused(_which(attached), code="ambiguous" if pending else "not_found")
        request = messages.Approval(
            approval_id=approval_id or pending[0],
            decision="allow" if allow else "deny",
            remember=remember,
        )
        decided = connection.request(request, messages.ApprovalDecided)
    if decided.decision != request.decision:
        by = decided.decided_by or "nobody in time"
        raise RequestRefused(f"it was decided before: {decided.decision}, by {by}", code="conflict")
    print_remark("allowed" if allow else "denied")


def _which(attached: messages.Attached) -> str:
    if not attached.pending_approvals:
        return f"{attached.name!r} asks for no approval now"
    asked = ", ".join(
        f"{each['approval_id']} ({each['tool_name']})" for each in attached.pending_approvals
    )
    return sanitize_line(f"{attached.name!r} asks for several approvals; give one: {asked}")


_remember = click.option(
    "--remember", is_flag=True, help="decide all later calls of that tool there, too"
)
_approval_argument = click.argument("approval", metavar="[APPROVAL]", required=False)


@command("nplt approve @last", 'nplt approve "my notes" --remember')
@session_argument
@_approval_argument
@_remember
def approve(wanted: str, approval: str | None, remember: bool, server: str | None) -> None:
    """Allow the tool call that a conversation asks about."""
    _decide(server, wanted, approval, allow=True, remember=remember)


@command("nplt deny @last", 'nplt deny "my notes" --remember')
@session_argument
@_approval_argument
@_remember
def deny(wanted: str, approval: str | None, remember: bool, server: str | None) -> None:
    """Refuse the tool call that a conversation asks about."""
    _decide(server, wanted, approval, allow=False, remember=remember)


@command(
    "nplt later @last",
    'nplt later "my notes (fork)" --release',
    has_json=True,
)
@session_argument
@click.option("--cancel", "turn_id", metavar="TURN", help="cancel this prompt for later")
@click.option("--release", is_flag=True, help="let the prompts run that a copy holds")
def later(
    wanted: str, turn_id: str | None, release: bool, as_json: bool, server: str | None
) -> None:
    """List a conversation's prompts for later (ask --at, --in), or cancel one."""
    with open_for_command(server) as connection:
        switch = messages.SessionSwitch(session_id=wanted, create=False)
        attached = connection.request(switch, messages.Attached)
        if turn_id is not None:
            ids = [each.turn_id for each in attached.later if each.turn_id.startswith(turn_id)]
            if len(ids) != 1:
                what = "several prompts" if ids else "no prompt"
                raise RequestRefused(
                    sanitize_line(f"{what} for later with this id in {attached.name!r}"),
                    code="ambiguous" if ids else "not_found",
                )
            connection.request(messages.Cancel(turn_id=ids[0]), messages.Cancelled)
            print_remark("cancelled")
        if release:
            connection.request(messages.SessionUpdate(release=True), messages.SessionRow)
            print_remark("released")
        if turn_id is not None or release:
            return
    if as_json:
        print(dump_json([to_object(each) for each in attached.later], pretty=True))
    elif attached.later:
        print(reports.later_table(attached.later))
    else:
        print_remark("no prompt for later")


def _with_client(server: str | None, use: Callable[[Client], Awaitable[T]]) -> T:
    """Runs a coroutine with a client that reconnects. Starts no server."""
    import anyio

    from nplt_client.client import connect

    async def run() -> T:
        async with connect(server) as client:
            await client.detach()
            return await use(client)

    return anyio.run(run)
