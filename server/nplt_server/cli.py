"""`nplt-server`: flags, exit codes, and one line when it is ready.

Exit codes: 0 drained and gone · 1 port or data directory taken · 78 the
settings have mistakes, one sentence each.
"""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path
from typing import Any

import click

from nplt_server import __version__
from nplt_server.commands.doctor import doctor
from nplt_server.commands.export import export
from nplt_server.commands.import_files import import_files
from nplt_server.commands.migrate import migrate
from nplt_server.commands.repair import repair
from nplt_server.errors import CannotServe, ConfigurationError

EXIT_CONFIGURATION = 78


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", type=click.Path(path_type=Path), help="Settings file (YAML).")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on; 0 picks a free one.  [default: 9999]")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where conversations are kept.")
@click.option("--default-model", metavar="PROVIDER/MODEL", help="Who answers new conversations.")
@click.option("--insecure", is_flag=True, help="Listen beyond this machine without tokens and TLS.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="debug shows every frame.  [default: info]",
)
@click.option("--check", is_flag=True, help="Check the settings and exit.")
@click.version_option(__version__, prog_name="nplt-server")
@click.pass_context
def main(context: click.Context, /, config: Path | None, check: bool, **flags: Any) -> None:
    """Keep conversations with language models the way tmux keeps shells."""
    if context.invoked_subcommand is None:
        sys.exit(_serve(config, _tree(flags), check=check))


@main.command()
@click.argument("name")
def token(name: str) -> None:
    """Print a new token once, and the line to put in the settings file."""
    from nplt_server.connections.users import new_token, token_sum

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
        raise click.BadParameter("a name has up to 64 letters, digits, _ . or -")
    fresh = new_token()
    click.echo(fresh)
    click.echo(f"users:\n  - {{name: {name}, token_sha256: {token_sum(fresh)}}}", err=True)
    click.echo("The token is shown this once; give it to its user (NPLT_TOKEN).", err=True)


for command in (doctor, repair, import_files, export, migrate):
    main.add_command(command)


def _tree(flags: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in flags.items() if value is not None}
    if not given["insecure"]:
        del given["insecure"]  # a flag that wasn't given says nothing
    listen = {name: given.pop(name) for name in ("host", "port") if name in given}
    return {**given, **({"listen": listen} if listen else {})}


def _serve(config: Path | None, flags: dict[str, Any], *, check: bool) -> int:
    # While all that is loaded is there to stay, looking for what is not takes a seventh
    # of the time to start.
    gc.disable()
    import anyio

    from nplt_server.app import Server, run_until_signalled, utc_now
    from nplt_server.commands.surroundings import forget_stdout
    from nplt_server.equipment import equip
    from nplt_server.histories import check_histories
    from nplt_server.logs import configure_logging
    from nplt_server.providers.building import build_router
    from nplt_server.settings_sources import load_settings

    def announce(server: Server) -> None:
        host, port = server.address
        gc.freeze()
        gc.enable()
        try:
            print(f"listening on {host}:{port}", flush=True)
        except OSError as error:
            # Serving matters more than saying so.
            forget_stdout()
            click.echo(f"nplt-server: can't write to stdout: {error.strerror}", err=True)

    try:
        settings = load_settings(flags, config_file=config)
        if check:
            equip(settings, build_router(settings), utc_now)
            check_histories(settings)
            click.echo("the settings are fine")
            return 0
        configure_logging(settings.log_level, log_format=settings.log_format)
        anyio.run(
            run_until_signalled, settings, announce, backend_options={"use_uvloop": _has_uvloop()}
        )
    except ConfigurationError as error:
        for mistake in error.mistakes:
            click.echo(f"nplt-server: {mistake}", err=True)
        return EXIT_CONFIGURATION
    except CannotServe as error:
        click.echo(f"nplt-server: {error}", err=True)
        return 1
    return 0


def _has_uvloop() -> bool:
    from importlib.util import find_spec

    return find_spec("uvloop") is not None
