"""`nplt-server import`: files of ours and of older programs, taken into a data directory."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nplt_server.commands.surroundings import (
    FileCommand,
    ProgressLine,
    data_dir_of,
    storage_errors_said,
)

if TYPE_CHECKING:
    from nplt_storage.care.importing import Imported


@click.command(name="import", cls=FileCommand)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE…")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where conversations are kept.")
@click.option("--user", help="Whose they are to be, whoever the files say.")
@click.pass_context
def import_files(
    context: click.Context, /, files: tuple[Path, ...], data_dir: Path | None, user: str | None
) -> None:
    """Take in conversations from files.

    Our own files, exported documents, and plain JSON documents with a list of
    messages. Each file is taken in whole or not at all; one that can't be is said, and the
    rest goes on (exit code 1). What is there already is left as it is. Not while a
    server uses the directory.
    """
    import anyio

    directory = data_dir_of(context, data_dir)
    with storage_errors_said():
        failed = anyio.run(_import_all, directory, files, user)
    sys.exit(1 if failed else 0)


async def _import_all(directory: Path, files: tuple[Path, ...], user: str | None) -> int:
    from nplt_storage.care.importing import import_file
    from nplt_storage.errors import StorageError
    from nplt_storage.files.store import JsonFileStore

    progress, failed = ProgressLine(), 0
    store = await JsonFileStore.open_directory(directory, clock=lambda: datetime.now(UTC))
    try:
        for number, path in enumerate(files, 1):
            progress.show(f"{number} of {len(files)}")
            try:
                imported = await import_file(store, path, files=store.directory.files, user=user)
            except StorageError as error:
                progress.clear()
                click.echo(f"{click.format_filename(path)}: {error}", err=True)
                failed += 1
            else:
                progress.clear()
                click.echo(f"{click.format_filename(path)}: {_said(imported)}")
    finally:
        progress.clear()
        await store.close()
    return failed


def _said(imported: Imported) -> str:
    if imported.was_there:
        return f"there already as {imported.session_id}, nothing was done"
    says = f"imported as {imported.session_id}, {imported.entries} entries"
    if imported.taken_id is not None:
        says += f" (there is a conversation {imported.taken_id} already)"
    if imported.missing:
        says += f"; missing beside the file: {', '.join(imported.missing)}"
    return says
