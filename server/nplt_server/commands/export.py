"""`nplt-server export`: one conversation as one JSON document that lacks nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from nplt_server.commands.surroundings import data_dir_of, give_up, storage_errors_said

if TYPE_CHECKING:
    from nplt_storage.care.documents import Missing


@click.command()
@click.argument("session_id", metavar="ID")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where conversations are kept.")
@click.pass_context
def export(
    context: click.Context, /, session_id: str, output: Path | None, data_dir: Path | None
) -> None:
    """Write a conversation as one JSON document.

    Long results and attachments included; `nplt-server import` takes it in again.
    Only reads, so a server may be running: what it writes meanwhile is left out.
    """
    directory = data_dir_of(context, data_dir)
    with storage_errors_said():
        try:
            missing = _export_to(directory, session_id, output)
        except BrokenPipeError:
            raise  # whoever reads stdout has seen enough: click knows what to do
        except OSError as error:
            give_up(f"it can't be written: {error.strerror}")
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


async def _write(directory: Path, session_id: str, out: BinaryIO) -> Missing:
    from nplt_storage.care.documents import Missing, export_document
    from nplt_storage.care.migrating import DirectoryPlace

    missing = Missing()
    with DirectoryPlace(directory).open(session_id) as found:
        document = export_document(
            found.source, session_id, read_attachment=found.read_attachment, missing=missing
        )
        async for piece in document:
            out.write(piece)
    return missing
