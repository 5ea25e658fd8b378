"""What every command on the files needs: which directory, and how to say that it can't."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import click

from nplt_server.errors import ConfigurationError

EXIT_CONFIGURATION = 78
EXIT_PIPE_CLOSED = 141


class FileCommand(click.Command):
    """A command whose output may have nowhere to go: a full disk is a sentence, and
    a reader who has seen enough is nothing to speak of."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            forget_stdout()
            sys.exit(EXIT_PIPE_CLOSED)
        except OSError as error:
            forget_stdout()
            give_up(f"{error.filename or 'stdout'}: {error.strerror}")


def forget_stdout() -> None:
    """What is still buffered can't be delivered; Python would complain about it at exit."""
    with suppress(OSError, ValueError):  # not a file at all
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def data_dir_of(context: click.Context, given: Path | None) -> Path:
    """The one that was given, or the one a server with these settings would use."""
    if given is not None:
        return given
    from nplt_server.settings_sources import load_settings

    program = context.find_root().params
    flags = {"data_dir": program["data_dir"]} if program.get("data_dir") else {}
    try:
        return load_settings(flags, config_file=program.get("config")).data_dir
    except ConfigurationError as error:
        for mistake in error.mistakes:
            click.echo(f"nplt-server: {mistake}", err=True)
        sys.exit(EXIT_CONFIGURATION)


def give_up(sentence: object) -> NoReturn:
    click.echo(f"nplt-server: {sentence}", err=True)
    sys.exit(1)


@contextmanager
def storage_errors_said() -> Iterator[None]:
    from nplt_storage.errors import DataDirectoryInUse, StorageError

    try:
        yield
    except DataDirectoryInUse as error:
        give_up(f"{error.directory} is in use: stop that server first")
    except StorageError as error:
        give_up(error)


class ProgressLine:
    """One line on stderr, written over and over; only for someone who is watching."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._width = 0

    def show(self, text: str) -> None:
        if self._is_shown:
            print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(text)

    def clear(self) -> None:
        if self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)
            self._width = 0
