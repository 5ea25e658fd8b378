"""`nplt-server doctor`: is everything that was remembered still there, as it was?"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nplt_server.commands.surroundings import FileCommand, ProgressLine, data_dir_of

if TYPE_CHECKING:
    from nplt_storage.care.doctor import Report
    from nplt_storage.care.findings import Finding

_SECONDS_BETWEEN = 0.2


@click.command(cls=FileCommand)
@click.argument(
    "data_dir", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@click.pass_context
def doctor(context: click.Context, /, data_dir: Path | None, as_json: bool) -> None:
    """Look for damage; change nothing.

    Reads every conversation of a data directory from end to end, also while a
    server runs. Lines that begin with "wrong" are for someone to act on (exit code
    1); notes are worth knowing, no more.
    """
    from nplt_storage.care.doctor import NoDataDirectory, examine_directory

    directory = data_dir_of(context, data_dir)
    if data_dir is None and not directory.exists():
        click.echo(f"{directory}: nothing there yet")
        return
    progress = _Progress()
    try:
        report = examine_directory(directory, progress=progress)
    except NoDataDirectory as error:
        raise click.UsageError(str(error)) from None
    finally:
        progress.line.clear()
    if as_json:
        click.echo(json.dumps(_as_json(report), indent=2))
    else:
        for finding in report.findings:
            click.echo(_line(finding))
        click.echo(_summary(report))
    sys.exit(1 if report.wrong else 0)


class _Progress:
    def __init__(self) -> None:
        self.line = ProgressLine()
        self._shown_at = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._shown_at > _SECONDS_BETWEEN:
            self._shown_at = now
            self.line.show(f"read {done >> 20} of {total >> 20} MiB")


def _line(finding: Finding) -> str:
    level = "wrong" if finding.is_wrong else "note "
    where = finding.file if finding.offset is None else f"{finding.file}, byte {finding.offset}"
    # Names of files come from outside: no control character reaches a terminal.
    return f"{level} {_printable(where)}: {_printable(finding.message)}"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def _summary(report: Report) -> str:
    from nplt_storage.care.findings import plural

    notes = plural(len(report.findings) - report.wrong, "note")
    verdict = f"{report.wrong} wrong" if report.wrong else "nothing wrong"
    size = report.size / (1 << 20)
    return f"{plural(report.conversations, 'conversation')}, {size:.1f} MiB: {verdict}, {notes}"


def _as_json(report: Report) -> dict[str, object]:
    return {
        "conversations": report.conversations,
        "bytes": report.size,
        "wrong": report.wrong,
        "findings": [finding.as_json() for finding in report.findings],
    }
