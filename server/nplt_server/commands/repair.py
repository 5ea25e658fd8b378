"""`nplt-server repair`: a damaged file is cut back to what is sound, the original kept."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nplt_server.commands.surroundings import FileCommand, give_up, storage_errors_said

if TYPE_CHECKING:
    from nplt_storage.care.repairing import Repair


@click.command(cls=FileCommand)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
def repair(file: Path, dry_run: bool) -> None:
    """Cut a damaged file back to what is sound.

    Makes a conversation usable again, by cutting and appending only: what stands
    before the first bad byte is kept as it is. The original stays beside it as
    FILE.before-repair-N, with all that was in it. Not while a server uses the
    directory.
    """
    from nplt_storage.care.drift import forget_row
    from nplt_storage.care.replacing import apply_repair, nobody_else_uses
    from nplt_storage.files.names import session_id_of

    path = file.absolute()
    session_id = session_id_of(path.name)
    if session_id is None:
        give_up(f"{file} is not named like a conversation's file (session_YYYYMMDD_<id>.json)")
    data_dir = path.parent.parent
    with storage_errors_said(), nobody_else_uses(data_dir):
        _refuse_two_files(path, session_id)
        plan = _plan(path, session_id)
        if not plan.says:
            click.echo("nothing to repair")
        elif dry_run:
            click.echo("\n".join(plan.says))
            click.echo("nothing was done: this was a dry run")
        else:
            try:
                aside = apply_repair(path, plan)
                forget_row(data_dir, session_id)
            except OSError as error:
                give_up(f"{file}: {error.strerror}")
            click.echo("\n".join(plan.says))
            click.echo(f"the original is kept as {aside.name}")


def _refuse_two_files(path: Path, session_id: str) -> None:
    """Whichever is repaired, the conversation would stay unusable."""
    from nplt_storage.files.names import session_id_of

    try:
        names = sorted(other.name for other in path.parent.iterdir())
    except OSError as error:
        give_up(f"{path.parent}: {error.strerror}")
    others = [name for name in names if session_id_of(name) == session_id and name != path.name]
    if others:
        give_up(
            f"there is more than one file for conversation {session_id}: {path.name} and "
            f"{', '.join(others)}; move away all but the one that counts"
        )


def _plan(path: Path, session_id: str) -> Repair:
    from nplt_storage.care.repairing import CannotRepair, plan_repair
    from nplt_storage.file_operations import SystemFiles, read_all
    from nplt_storage.ids import new_entry_id

    files = SystemFiles()
    try:
        descriptor = files.open(path, os.O_RDONLY)
        try:
            return plan_repair(
                lambda offset, length: read_all(files, descriptor, length, offset),
                files.size(descriptor),
                session_id=session_id,
                clock=lambda: datetime.now(UTC),
                new_id=new_entry_id,
            )
        finally:
            files.close(descriptor)
    except CannotRepair as reason:
        give_up(f"{path.name}: {reason}")
    except OSError as error:
        give_up(f"{path.name}: {error.strerror}")
