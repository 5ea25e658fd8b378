"""The command `nplt-server`: flags, exit codes, and the operator's commands on the files.

The server exits with 0 after it has drained, 1 if the port or the data directory is taken, and 78
if the settings have mistakes, one sentence each. The commands (backup, doctor, repair, export,
import, migrate) exit with 0 on success, 1 if something is wrong or was left undone, 2 if they were
misused, 3 if a backup left something out, 78, and 141 if the reader of stdout has closed it.
Results go to stdout, one line each, errors to stderr. Each command imports what it needs when it
runs, so that `nplt-server --help` stays quick.
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, Self

import click

from nplt_server import __version__
from nplt_server.errors import EXIT_CONFIGURATION, CannotServe, ConfigurationError

if TYPE_CHECKING:  # slow to load, and only some commands need it
    from nplt_server.settings import Settings
    from nplt_storage.maintenance.doctor import Report
    from nplt_storage.maintenance.importing import Imported
    from nplt_storage.maintenance.migrate import Place
    from nplt_storage.store import ConversationStore, Repaired


EXIT_USAGE = 2
EXIT_LEFT_OUT = 3
EXIT_PIPE_CLOSED = 141

_now = partial(datetime.now, UTC)
_EXIT_CODES = (
    "Exit codes: 0 success, also after SIGTERM, 1 it could not serve or something is wrong, "
    "2 usage error, 3 a backup left something out, 78 mistakes in the settings, "
    "141 output closed."
)


def _notes(*examples: str) -> str:
    """Returns the examples and exit codes at the end of every `--help`."""
    shown = "".join(f"  {example}\n" for example in examples)
    return f"\b\nExamples:\n{shown}\n{_EXIT_CODES}"


_data_dir_option = click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Where conversations are kept."
)


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_notes(
        "nplt-server --config server.yaml --check",
        "nplt-server --config server.yaml --workers 4",
    ),
)
@click.option("--config", type=click.Path(path_type=Path), help="Settings file (YAML).")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on; 0 picks a free one.  [default: 9999]")
@click.option(
    "--http-port",
    type=click.IntRange(0, 65_535),
    help="Port for HTTP; 0 picks a free one.  [default: 9998, or a free one]",
)
@_data_dir_option
@click.option("--default-model", metavar="PROVIDER/MODEL", help="Who answers new conversations.")
@click.option("--any-port", is_flag=True, help="Another free port, if that one is taken.")
@click.option("--insecure", is_flag=True, help="Listen beyond this machine without tokens and TLS.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="debug shows every frame.  [default: info]",
)
@click.option(
    "--log-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Log to this file, which is rotated, instead of stderr.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    help="Start that many servers behind the port; needs conversations in Redis.",
)
@click.option("--check", is_flag=True, help="Check the settings and exit.")
@click.version_option(__version__, prog_name="nplt-server")
@click.pass_context
def main(
    context: click.Context,
    /,
    config: Path | None,
    check: bool,
    any_port: bool,
    workers: int | None,
    **flags: Any,
) -> None:
    """Keep conversations with language models the way tmux keeps shells."""
    if context.invoked_subcommand is not None:
        gc.enable()
        return
    _disable_plugins()
    from nplt_server.logs import configure_logging
    from nplt_server.settings_loader import SettingsSource, load_settings
    from nplt_server.start import Workers, run, why_no_workers

    given = {name: value for name, value in flags.items() if value is not None}
    if not given["insecure"]:
        del given["insecure"]  # a flag that was not given must not override the settings
    listens = ("host", "port", "http_port")
    if listen := {name: given.pop(name) for name in listens if name in given}:
        given["listen"] = listen
    try:
        source = SettingsSource(partial(load_settings, given, config_file=config))
        settings = source.loaded
        if workers is not None and (reason := why_no_workers(settings)) is not None:
            fail(reason, exit_code=EXIT_USAGE)
        if check:
            from nplt_server.app import build_parts
            from nplt_server.histories import check_histories

            build_parts(settings)
            check_histories(settings)
            for problem in _examine_shared(settings):
                click.echo(f"nplt-server: warning: {problem}", err=True)
            click.echo("the settings are fine")
            return
        if workers is not None and settings.log_file is not None:
            fail("--workers can't share a log_file; let them log to stderr", exit_code=EXIT_USAGE)
        try:
            configure_logging(
                settings.log_level,
                log_format=settings.log_format,
                file=settings.log_file,
                file_bytes_max=settings.log_file_bytes_max,
                files_kept=settings.log_files_kept,
            )
        except OSError as error:
            fail(f"log_file: can't write {settings.log_file}: {error.strerror}")
        if workers is not None:
            sys.exit(Workers(source, workers).run(_announce, any_port=any_port))
        run(settings, _announce, source=source, any_port=any_port)
    except ConfigurationError as error:
        fail(*error.mistakes, exit_code=EXIT_CONFIGURATION)
    except CannotServe as error:
        fail(error)


def _examine_shared(settings: Settings) -> list[str]:
    """Asks each Redis of the settings; returns what an operator should change."""
    if all(history.backend.type != "redis" for history in settings.histories):
        return []
    import anyio

    from nplt_server.histories import examine_shared
    from nplt_storage.store import MemberNote

    secret = ""
    if settings.cluster.secret_file is not None:
        from nplt_server.relay import fingerprint_of, read_secret

        secret = fingerprint_of(read_secret(settings.cluster))
    return anyio.run(examine_shared, settings, MemberNote(version=__version__, secret=secret))


def _announce(host: str, port: int, http_url: str | None) -> None:
    try:
        from nplt_server.start import place_of

        lines = f"listening on {place_of(host, port)}\n"
        if http_url is not None:
            lines += f"http on {http_url}\n"
        print(lines, end="", flush=True)  # at once: the reader may stop after the first line
    except OSError as error:
        # The server runs even if it cannot announce itself.
        forget_stdout()
        click.echo(f"nplt-server: can't write to stdout: {error.strerror}", err=True)


def _disable_plugins() -> None:
    """Stops pydantic from searching every installed package for plugins, which the settings do
    not need. Even with plugins disabled it imports `importlib.metadata` and `email`, a twentieth
    of the start-up time, so the module that searches is replaced by a stub that loads the real
    one when another name is needed."""
    if os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1") != "1":
        return
    name = "pydantic.plugin._loader"

    def load(attribute: str) -> object:
        if attribute.startswith("__"):  # the import system asks for them
            raise AttributeError(attribute)
        del sys.modules[name]
        return getattr(import_module(name), attribute)

    stub = ModuleType(name)
    vars(stub).update(get_plugins=tuple, __getattr__=load)
    sys.modules.setdefault(name, stub)


class FileCommand(click.Command):
    """A command that reports a full disk in one sentence and exits quietly when the reader of
    its output has closed the pipe."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            forget_stdout()
            sys.exit(EXIT_PIPE_CLOSED)
        except OSError as error:
            forget_stdout()
            fail(f"{error.filename or 'stdout'}: {error.strerror}")


def _file_command(
    *examples: str, name: str | None = None
) -> Callable[[Callable[..., None]], click.Command]:
    return main.command(name, cls=FileCommand, epilog=_notes(*examples))


def forget_stdout() -> None:
    """Redirects stdout to the null device, so that Python does not fail at exit when it flushes
    output that can't be delivered."""
    with suppress(OSError, ValueError):  # stdout may not be a file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def data_dir_of(given: Path | None) -> Path:
    """Returns the given directory, or the one that a server with these settings would use."""
    if given is not None:
        return given
    from nplt_server.settings_loader import load_settings

    program = click.get_current_context().find_root().params
    flags = {"data_dir": program["data_dir"]} if program.get("data_dir") else {}
    try:
        return load_settings(flags, config_file=program.get("config")).data_dir
    except ConfigurationError as error:
        fail(*error.mistakes, exit_code=EXIT_CONFIGURATION)


def fail(*sentences: object, exit_code: int = 1) -> NoReturn:
    for sentence in sentences:
        click.echo(f"nplt-server: {sentence}", err=True)
    sys.exit(exit_code)


@contextmanager
def reporting_storage_errors(or_else: str = "") -> Iterator[None]:
    from nplt_storage.errors import DataDirectoryInUse, StorageError

    try:
        yield
    except DataDirectoryInUse as error:
        fail(f"{error.directory} is in use: stop that server first{or_else}")
    except StorageError as error:
        fail(error)


_SECONDS_BETWEEN = 0.2


class ProgressLine:
    """Overwrites one line on stderr with the progress, if stderr is a terminal. Leaving the block
    clears it."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._width = 0
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        if self._is_shown and (now := time.monotonic()) - self._shown_at > _SECONDS_BETWEEN:
            print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width, self._shown_at = len(text), now

    def clear(self) -> None:
        if self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)
            self._width, self._shown_at = 0, 0.0


class _DirectoryOrRedis(click.Path):
    """A data directory, or the URL of a Redis, which stays text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from nplt_storage.redis.address import is_redis_url

        if isinstance(value, str) and is_redis_url(value):
            return value
        return super().convert(value, param, ctx)


_place_option = click.option(
    "--data-dir",
    metavar="DIR|URL",
    type=_DirectoryOrRedis(path_type=Path),
    help="Where conversations are kept: a data directory or a Redis.",
)

_RELOAD_SECONDS_MAX = 30.0


@_file_command(
    "nplt-server reload", "nplt-server --config server.yaml --check && nplt-server reload"
)
def reload() -> None:
    """Have the running server take over changed settings.

    Users, certificates, providers, models and tools are replaced while turns go on. Settings that
    need a restart are named. The server is the one that `nplt server status` shows; the
    signal SIGHUP does the same to any server.
    """
    from nplt_server.start import RuntimeFile

    running = RuntimeFile.read()
    if running is None:
        fail("no server of yours is running", exit_code=1)
    before = _number_of_reloads(running)
    os.kill(running["pid"], signal.SIGHUP)
    deadline = time.monotonic() + _RELOAD_SECONDS_MAX
    while (running := RuntimeFile.read() or {}) and _number_of_reloads(running) == before:
        if time.monotonic() > deadline:
            fail("the server has not taken over its settings yet; its log says more", exit_code=1)
        time.sleep(0.05)
    if not running:
        fail("the server ended; its log says more", exit_code=1)
    found = running["reload"]
    if found["mistakes"]:
        fail(*found["mistakes"], exit_code=EXIT_CONFIGURATION)
    click.echo(f"changed: {', '.join(found['changed']) or 'nothing'}")
    if found["need_restart"]:
        click.echo(f"take effect at the next start: {', '.join(found['need_restart'])}")


def _number_of_reloads(running: dict[str, Any]) -> int:
    return int(running.get("reload", {}).get("number", 0))


@_file_command(
    "nplt-server doctor /srv/nplt --json",
    "nplt-server doctor redis://127.0.0.1:6379/0",
)
@click.argument(
    "data_dir",
    required=False,
    metavar="[DATA_DIR|URL]",
    type=_DirectoryOrRedis(exists=True, file_okay=False, path_type=Path),
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
def doctor(data_dir: Path | str | None, as_json: bool) -> None:
    """Look for damage; change nothing.

    Reads every conversation of a data directory, or of a Redis
    (redis://HOST:PORT/DB[?key_prefix=PREFIX]), from end to end, also while
    servers run. Lines that begin with "wrong" are for someone to act on (exit code
    1); notes are worth knowing, no more.
    """
    from nplt_storage.maintenance.doctor import NoDataDirectory, examine_directory

    if isinstance(data_dir, str):
        _report(_examined_redis(data_dir), as_json=as_json)
    directory = data_dir_of(data_dir)
    if data_dir is None and not directory.exists():
        click.echo(f"{directory}: nothing there yet")
        return
    with ProgressLine() as line:
        try:
            report = examine_directory(
                directory,
                progress=lambda done, of: line.show(f"read {done >> 20} of {of >> 20} MiB"),
            )
        except NoDataDirectory as error:
            raise click.UsageError(str(error)) from None
    _report(report, as_json=as_json)


def _examined_redis(url: str) -> Report:
    import anyio

    from nplt_storage.maintenance.redis_doctor import examine_redis

    with reporting_storage_errors(), ProgressLine() as line:
        examine = partial(
            examine_redis, url, progress=lambda done, of: line.show(f"read {done} of {of}")
        )
        return anyio.run(examine)


def _report(report: Report, *, as_json: bool) -> NoReturn:
    from nplt_storage.files.examination import plural

    if as_json:
        document = {
            "conversations": report.conversations,
            "bytes": report.size,
            "wrong": report.wrong,
            "findings": [finding.as_json() for finding in report.findings],
        }
        click.echo(json.dumps(document, indent=2))
        sys.exit(1 if report.wrong else 0)
    for finding in report.findings:
        level = "wrong" if finding.is_wrong else "note "
        where = "" if finding.offset is None else f", byte {finding.offset}"
        place = f"{finding.file}{where}: " if finding.file else ""
        click.echo(f"{level} {_printable(f'{place}{finding.message}')}")
    notes = plural(len(report.findings) - report.wrong, "note")
    verdict = f"{report.wrong} wrong" if report.wrong else "nothing wrong"
    size = f"{report.size / (1 << 20):.1f} MiB"
    click.echo(f"{plural(report.conversations, 'conversation')}, {size}: {verdict}, {notes}")
    sys.exit(1 if report.wrong else 0)


def _printable(text: str) -> str:
    """Replaces control characters: names of files are untrusted and may be shown in a terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


@_file_command(
    "nplt-server backup /mnt/disk/nplt-monday",
    "nplt-server backup --data-dir /srv/nplt /mnt/disk/nplt-monday",
    "nplt-server backup --data-dir redis://127.0.0.1:6379/0 /mnt/disk/nplt-monday",
)
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@_place_option
def backup(target: Path, data_dir: Path | str | None) -> None:
    """Copy all conversations to DIR, also while a server runs.

    DIR must not be there yet. It becomes a data directory: every conversation in it
    is whole, with its attachments, and so is the trash. To restore it, stop the
    server and put DIR in the place of the data directory, or start a server with
    --data-dir DIR. What is no file of ours (a link, a pipe, a folder in the place of a
    file) or can't be read is left out and named, and the exit code is 3.

    With the URL of a Redis (redis://HOST:PORT/DB[?key_prefix=PREFIX]) its
    conversations are copied, with the attached files that it has, but without its
    trash; nplt-server migrate DIR URL restores them.
    """
    import anyio

    from nplt_storage.files.examination import plural
    from nplt_storage.maintenance.backup import CannotBackUp, back_up

    target = target.absolute()
    try:
        with ProgressLine() as line:

            def show(copied: int, of: int) -> None:
                line.show(f"copied {copied} of {of}")

            if isinstance(data_dir, str):
                from nplt_storage.maintenance.redis_backup import back_up_redis

                with reporting_storage_errors():
                    done = anyio.run(partial(back_up_redis, data_dir, target, progress=show))
            else:
                done = back_up(data_dir_of(data_dir), target, progress=show)
    except CannotBackUp as reason:
        fail(reason)
    trash = f" and {done.deleted} in the trash" if done.deleted else ""
    copied = plural(done.conversations, "conversation")
    click.echo(f"{copied}{trash}, {done.size / (1 << 20):.1f} MiB: {target}")
    if done.left_out:
        fail(
            *(f"left out: {_printable(name)}: {reason}" for name, reason in done.left_out),
            exit_code=EXIT_LEFT_OUT,
        )


@_file_command(
    "nplt-server repair --dry-run 1f0c2a3b",
    "nplt-server repair /srv/nplt/history/session_20250102_1f0c2a3b.json",
    "nplt-server repair --data-dir redis://127.0.0.1:6379/0 1f0c2a3b",
)
@click.argument("wanted", metavar="FILE|ID")
@_place_option
@click.option("--user", help="Whose it is, if its first line is lost.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
def repair(wanted: str, data_dir: Path | str | None, user: str | None, dry_run: bool) -> None:
    """Make a damaged conversation usable again.

    Every line whose checksum is right is kept as it is; each other one is replaced by
    a note that it is lost. The original stays in the same folder, complete, as
    FILE.before-repair-N. If the first line is lost, the index knows the user; if it
    doesn't, give --user. ID may be the beginning
    of an id, if only one begins so. Not while a server uses the directory: then nplt
    repair does the same.

    In a Redis (--data-dir redis://HOST:PORT/DB[?key_prefix=PREFIX]) the original goes
    to the trash. No server may have the conversation open.
    """
    from nplt_storage.files.format import by_session_id, session_id_of
    from nplt_storage.files.repair import exclusive_use, repair_file
    from nplt_storage.files.salvage import CannotRepair, KnownElsewhere
    from nplt_storage.ids import new_entry_id
    from nplt_storage.maintenance.doctor import forget_row, known_to_index

    if isinstance(data_dir, str):
        _repair_in_redis(data_dir, wanted, dry_run=dry_run)
        return
    file = _file_of(wanted, data_dir)
    path = file.absolute()
    session_id = session_id_of(path.name)
    if session_id is None:
        fail(f"{file} is not named like a conversation's file (session_YYYYMMDD_<id>.json)")
    data_dir = path.parent.parent
    new_file = f", or: nplt repair {session_id}"
    with reporting_storage_errors(or_else=new_file), exclusive_use(data_dir):
        names = sorted(each.name for each in path.parent.iterdir() if each.name != path.name)
        if others := by_session_id(names).get(session_id):
            # The conversation would stay unusable even after a repair of one of them.
            fail(
                f"there is more than one file for conversation {session_id}: {path.name} and "
                f"{', '.join(others)}; move away all but the one that counts"
            )
        row = known_to_index(data_dir, session_id)
        known = KnownElsewhere(
            user=user or (row.user if row else None) or None,
            created_at=row.created_at if row else None,
        )
        try:
            done = repair_file(
                path, session_id, clock=_now, new_id=new_entry_id, known=known, dry_run=dry_run
            )
        except CannotRepair as reason:
            fail(f"{path.name}: {reason}")
        except OSError as error:
            fail(f"{path.name}: {error.strerror}")
        if not dry_run:
            forget_row(data_dir, session_id)
    _report_repair(done, f"the original is kept as {done.original}", dry_run=dry_run)


def _repair_in_redis(url: str, wanted: str, *, dry_run: bool) -> None:
    import anyio

    from nplt_storage.files.salvage import CannotRepair
    from nplt_storage.maintenance.migrate import ids_in_redis
    from nplt_storage.maintenance.redis_repair import repair_in_redis
    from nplt_storage.redis.address import split_key_prefix

    with reporting_storage_errors():
        session_id = _meant(wanted, ids_in_redis(*split_key_prefix(url)))
        try:
            done = anyio.run(partial(repair_in_redis, url, session_id, dry_run=dry_run))
        except CannotRepair as reason:
            fail(f"{session_id}: {reason}")
        except OSError as error:
            fail(f"{session_id}: {error.strerror}")
    _report_repair(done, "the original is in the trash", dry_run=dry_run)


def _report_repair(done: Repaired, original: str, *, dry_run: bool) -> None:
    click.echo("\n".join(done.says) if done.says else "nothing to repair")
    if done.says:
        click.echo("nothing was done: this was a dry run" if dry_run else original)


def _file_of(wanted: str, data_dir: Path | None) -> Path:
    """Returns the file of that name, else the file of the conversation with that id."""
    from nplt_storage.files.format import by_session_id

    given = Path(wanted)
    if given.is_file():
        return given
    if given.exists():
        raise click.UsageError(
            f"{wanted} is a directory; give the file of a conversation, or its id"
        )
    history = data_dir_of(data_dir) / "history"
    names = [path.name for path in history.iterdir()] if history.is_dir() else []
    by_id = by_session_id(names)
    with reporting_storage_errors():
        found = by_id.get(_meant(wanted, list(by_id)))
    if found is None:
        raise click.UsageError(
            f"there is no file {wanted}, and no conversation {wanted} in {history}"
        )
    return history / found[-1]


def _meant(wanted: str, ids: list[str]) -> str:
    """Returns the only id that begins with `wanted`, else `wanted` itself."""
    from nplt_storage.errors import StorageError

    found = [id_ for id_ in ids if id_.startswith(wanted)] if wanted else []
    if wanted in ids or not found:
        return wanted
    if len(found) > 1:
        raise StorageError(f"{len(found)} conversations have ids that begin with {wanted!r}")
    return found[0]


@_file_command(
    "nplt-server export 1f0c2a3b -o talk.json",
    "nplt-server export --data-dir /srv/nplt 1f0c2a3b",
)
@click.argument("session_id", metavar="ID")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
@_data_dir_option
def export(session_id: str, output: Path | None, data_dir: Path | None) -> None:
    """Write a conversation as one JSON document.

    ID may be the beginning of an id, if only one begins so. Long results and
    attachments included; `nplt-server import` takes it in again.
    Only reads, so a server may be running: what it writes meanwhile is left out.
    """
    directory = data_dir_of(data_dir)
    with reporting_storage_errors():
        try:
            missing = _export_to(directory, session_id, output)
        except BrokenPipeError:
            raise  # `FileCommand` handles a closed pipe
        except OSError as error:
            where = "stdout" if output is None else click.format_filename(output)
            forget_stdout()
            fail(f"{where} can't be written: {error.strerror}")
    if missing:
        fail(f"it lacks what is not there any more: {', '.join(missing)}")


def _export_to(directory: Path, session_id: str, output: Path | None) -> list[str]:
    import anyio

    if output is None:
        missing = anyio.run(_write, directory, session_id, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return missing
    new_file = output.with_name(f".{output.name}.new")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(os.open(new_file, flags, 0o600), "wb") as file:
            missing = anyio.run(_write, directory, session_id, file)
            file.flush()
            os.fsync(file.fileno())
        new_file.replace(output)
    finally:
        new_file.unlink(missing_ok=True)
    return missing


async def _write(directory: Path, session_id: str, out: BinaryIO) -> list[str]:
    from nplt_storage.maintenance.export import export_document
    from nplt_storage.maintenance.migrate import DirectoryPlace

    missing, place = list[str](), DirectoryPlace(directory)
    session_id = _meant(session_id, place.ids())
    with place.open(session_id) as (source, read):
        document = export_document(source, session_id, read_attachment=read, missing=missing)
        async for piece in document:
            out.write(piece)
    return missing


@_file_command(
    "nplt-server import talk.json", "nplt-server import --user ada *.json", name="import"
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE…")
@_data_dir_option
@click.option("--user", help="Whose they are to be, whoever the files say.")
def import_files(files: tuple[Path, ...], data_dir: Path | None, user: str | None) -> None:
    """Take in conversations from files.

    Our own files, exported documents, and plain JSON documents with a list of
    messages. Each file is taken in whole or not at all; one that can't be is said, and the
    rest goes on (exit code 1). What is there already is left as it is. Not while a
    server uses the directory.
    """
    import anyio

    directory = data_dir_of(data_dir)
    with reporting_storage_errors():
        failed = anyio.run(_import_all, str(directory), files, user)
    sys.exit(1 if failed else 0)


async def _import_all(directory: str, files: tuple[Path, ...], user: str | None) -> int:
    from nplt_storage.errors import StorageError
    from nplt_storage.maintenance.importing import import_file

    failed = 0
    async with _store(directory) as (store, attachments):
        with ProgressLine() as progress:
            for number, path in enumerate(files, 1):
                progress.show(f"{number} of {len(files)}")
                name = click.format_filename(path)
                try:
                    imported = await import_file(store, path, files=attachments, user=user)
                except StorageError as error:
                    progress.clear()
                    click.echo(f"{name}: {error}", err=True)
                    failed += 1
                else:
                    progress.clear()
                    click.echo(f"{name}: {_describe(imported)}")
    return failed


def _describe(imported: Imported) -> str:
    if imported.was_there:
        return f"there already as {imported.session_id}, nothing was done"
    says = f"imported as {imported.session_id}, {imported.entries} entries"
    if imported.taken_id is not None:
        says += f" (there is a conversation {imported.taken_id} already)"
    if imported.missing:
        says += f"; missing beside the file: {', '.join(imported.missing)}"
    return says


@_file_command(
    "nplt-server migrate ~/.local/share/nplt /srv/nplt",
    "nplt-server migrate /srv/nplt redis://127.0.0.1:6379/0",
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
def migrate(source: str, target: str) -> None:
    """Copy all conversations to another place.

    A place is a data directory or redis://HOST:PORT/DB[?key_prefix=PREFIX]. Those
    of every user are copied; FROM is only read, but a Redis of an earlier version
    is brought to the present layout. What is there already is passed
    over, so an interrupted run can be repeated; each copy is compared with its
    original. No server may use FROM meanwhile. Exit code 1 if anything was left.
    """
    import anyio

    from nplt_storage.files.repair import exclusive_use
    from nplt_storage.redis.address import is_redis_url

    _refuse_confusion(source, target)
    # No server may write to the source while it is copied.
    alone = nullcontext() if is_redis_url(source) else exclusive_use(Path(source))
    with reporting_storage_errors(), alone:
        counted = anyio.run(_migrate, source, target)
    copied, there, left = (counted[outcome] for outcome in ("copied", "there", "left"))
    click.echo(f"{copied} copied, {there} there already, {left} left")
    sys.exit(1 if left else 0)


def _refuse_confusion(source: str, target: str) -> None:
    from nplt_storage.redis.address import KINDS, is_redis_url, split_key_prefix

    for place in (source, target):
        scheme, separator, _ = place.partition("://")
        if separator and not is_redis_url(place):
            raise click.UsageError(
                f"{place}: there are directories and {', '.join(f'{s}://' for s in KINDS)}, "
                f"but no {scheme}://"
            )
    if is_redis_url(source) != is_redis_url(target):
        return
    if is_redis_url(source):
        is_same, is_inside = split_key_prefix(source) == split_key_prefix(target), False
    else:
        before, after = Path(source).resolve(), Path(target).resolve()
        is_same, is_inside = before == after, before in after.parents
    if is_same:
        raise click.UsageError("FROM and TO are the same place")
    if is_inside:
        raise click.UsageError("TO is inside FROM, which is only read")


async def _migrate(source: str, target: str) -> Counter[str]:
    from nplt_storage.maintenance.migrate import migrate

    counted = Counter[str]()
    async with _place(source) as place, _store(target) as (store, files):
        total = len(place.ids())
        with ProgressLine() as progress:
            async for moved in migrate(place, store, files=files):
                counted[moved.outcome] += 1
                if moved.outcome == "left" or "missing" in moved.says:
                    progress.clear()
                    left = "left: " if moved.outcome == "left" else ""
                    click.echo(f"{moved.session_id}: {left}{moved.says}", err=True)
                progress.show(f"{counted.total()} of {total}")
    return counted


@asynccontextmanager
async def _place(text: str) -> AsyncIterator[Place]:
    import anyio.to_thread

    from nplt_storage.maintenance.migrate import DirectoryPlace, StorePlace, ids_in_redis
    from nplt_storage.redis.address import is_redis_url, split_key_prefix

    if not is_redis_url(text):
        yield DirectoryPlace(Path(text))
        return
    async with _store(text) as (store, _):
        await _refuse_live_servers(store)
        ids = await anyio.to_thread.run_sync(ids_in_redis, *split_key_prefix(text))
        yield StorePlace(store, ids)


async def _refuse_live_servers(store: ConversationStore) -> None:
    """Fails if servers use the store: the copy would lack the entries that they write meanwhile."""
    from nplt_storage.errors import StorageError
    from nplt_storage.redis.store import RedisStore

    assert isinstance(store, RedisStore)
    servers = [member for member in await store.members() if member.id != store.server_id]
    if servers:
        places = ", ".join(member.address or member.host for member in servers)
        raise StorageError(f"servers use this Redis ({places}): stop them first")


@asynccontextmanager
async def _store(text: str) -> AsyncIterator[tuple[ConversationStore, Path | None]]:
    """Opens a store; gives it with the directory of its attachments, if it keeps them in files."""
    from nplt_storage.opening import StoreConfig, open_store
    from nplt_storage.redis.address import is_redis_url, split_key_prefix

    if is_redis_url(text):
        url, key_prefix = split_key_prefix(text)
        config = StoreConfig(type="redis", options={"url": url, "key_prefix": key_prefix})
        store, files = await open_store(config, data_dir=Path(), clock=_now), None
    else:
        from nplt_storage.files.store import JsonFileStore

        store = await JsonFileStore.open_directory(Path(text), clock=_now)
        files = store.directory.files
    try:
        yield store, files
    finally:
        await store.close()


@_file_command(
    "nplt-server config",
    "nplt-server config > ~/.config/nplt/server.yaml && nplt-server --check",
    name="config",
)
def sample_config() -> None:
    """Print a settings file with every setting and its default."""
    in_package = Path(__file__).with_name("server.yaml")
    in_checkout = Path(__file__).parents[2] / "config" / "server.yaml"
    file = in_package if in_package.exists() else in_checkout
    click.echo(file.read_text(encoding="utf-8"), nl=False)


@main.command(epilog=_notes("nplt-server token ada", "nplt-server token ada > ada.token"))
@click.argument("name")
def token(name: str) -> None:
    """Print a new token once, and the line to put in the settings file."""
    import secrets

    from nplt_server.connections.admission import token_digest

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
        raise click.BadParameter("a name has up to 64 letters, digits, _ . or -")
    fresh = secrets.token_urlsafe(32)
    click.echo(fresh)
    click.echo(f"users:\n  - {{name: {name}, token_sha256: {token_digest(fresh)}}}", err=True)
    click.echo("The token is shown this once; give it to its user (NPLT_TOKEN).", err=True)


@main.command(
    "completion",
    epilog=_notes("source <(nplt-server completion bash)", "nplt-server completion fish | source"),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_script(shell: str) -> None:
    """Print the script that completes nplt-server commands in a shell."""
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(main, {}, "nplt-server", "_NPLT_SERVER_COMPLETE").source())
