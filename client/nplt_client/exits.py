"""How a command ends: one sentence on stderr, and a code that scripts can trust.

    0 ok · 1 internal · 2 usage · 3 config · 4 auth · 5 can't connect or lost ·
    6 provider · 7 time-out · 8 protocol · 9 limit · 130 interrupted ·
    141 the reader of our output has gone (silent)

This is the edge: the one place where every exception is caught.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import click

from nplt_client.errors import NpltError
from nplt_client.terminal import complain, say

INTERNAL = 1
USAGE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141

_HELP_WANTED: type[Exception] | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""A group without its command; older versions of click deal with it themselves."""


def run_to_exit_code(command: Callable[[], object]) -> int:
    try:
        code = command()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except NpltError as error:
        complain(error)
        return error.exit_code
    except click.UsageError as error:
        _explain_usage(error)
        return USAGE
    except click.ClickException as error:
        say(f"nplt: {error.format_message()}")
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        forget_stdout()
        return PIPE_CLOSED
    except OSError as error:
        forget_stdout()
        say(f"nplt: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
        return INTERNAL
    except Exception:
        import traceback

        say(f"nplt: this is a mistake in nplt itself:\n{traceback.format_exc()}")
        return INTERNAL


def _explain_usage(error: click.UsageError) -> None:
    if isinstance(error, _HELP_WANTED):  # its message is the help itself
        say(error.format_message())
        return
    if error.ctx is not None:
        say(error.ctx.get_usage())
        say(f"Try '{error.ctx.command_path} --help' for help.")
    say(f"Error: {error.format_message()}")


def forget_stdout() -> None:
    """What is still buffered can't be delivered; Python would complain about it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
