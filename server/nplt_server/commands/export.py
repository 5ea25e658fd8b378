"""`nplt-server export`: one conversation as one JSON document that lacks nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from nplt_server.commands.surroundings import (
    FileCommand,
    data_dir_of,
    forget_stdout,
    give_up,
    storage_errors_said,
)

if TYPE_CHECKING:
    from nplt_storage.care.documents import Missing


@click.command(cls=FileCommand)
@click.argument("session_id", metavar="ID")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where conversations are kept.")
@click.pass_context
def export(
    context: click.Context, /, session_id: str, output: Path | None, data_dir: Path | None
) -> None:
    """Write a conversation as one JSON document.

    ID may be the beginning of an id, if only one begins so. Long results and
    attachments included; `nplt-server import` takes it in again.
    Only reads, so a server may be running: what it writes meanwhile is left out.
    """
    directory = data_dir_of(context, data_dir)
    with storage_errors_said():
        try:
            missing = _export_to(directory, session_id, output)
        except BrokenPipeError:
            raise  # whoever reads stdout has seen enough
        except OSError as error:
            where = "stdout" if output is None else click.format_filename(output)
            forget_stdout()
            give_up(f"{where} can't be written: {error.strerror}")
    if missing.ids:
        give_up(f"it lacks what is not there any more: {', '.join(missing.ids)}")


def _export_to(directory: Path, session_id: str, output: Path | None) -> Missing:
    import anyio

    if output is None:
        missing = anyio.run(_write, directory, session_id, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return missing
    beside = output.with_name(f".{output.name}.new")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(os.open(beside, flags, 0o600), "wb") as file:
            missing = anyio.run(_write, directory, session_id, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(output)
    finally:
        beside.unlink(missing_ok=True)
    return missing


def _meant(wanted: str, ids: list[str]) -> str:
    """Itself, or the only id that begins with it."""
    from nplt_storage.errors import StorageError

    found = [id_ for id_ in ids if id_.startswith(wanted)] if wanted else []
    if wanted in ids or not found:
        return wanted
    if len(found) > 1:
        raise StorageError(f"{len(found)} conversations have ids that begin with {wanted!r}")
    return found[0]


async def _write(directory: Path, session_id: str, out: BinaryIO) -> Missing:
    from nplt_storage.care.documents import Missing, export_document
    from nplt_storage.care.migrating import DirectoryPlace

    missing, place = Missing(), DirectoryPlace(directory)
    session_id = _meant(session_id, place.ids())
    with place.open(session_id) as found:
        document = export_document(
            found.source, session_id, read_attachment=found.read_attachment, missing=missing
        )
        async for piece in document:
            out.write(piece)
    return missing
