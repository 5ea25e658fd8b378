"""`nplt server | completion | config`: names and options."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes Tab work for nplt.

    \b
    bash: source <(nplt completion bash)     in ~/.bashrc
    zsh:  source <(nplt completion zsh)      in ~/.zshrc, after compinit
    fish: nplt completion fish | source      in ~/.config/fish/config.fish
    """
    from nplt_client.completion_scripts import SCRIPTS

    print(SCRIPTS[shell], end="")


@click.group()
def config() -> None:
    """Your own settings: which server, which token."""


@config.command("path")
def config_path() -> None:
    """Say where the file is, or would be."""
    from nplt_client.configuring import print_path

    print_path()


@config.command("show")
def config_show() -> None:
    """Say what holds, and who said so. Tokens are not shown."""
    from nplt_client.configuring import print_settings

    print_settings()


@config.command("check")
def config_check() -> int:
    """Look for mistakes; the server is not asked."""
    from nplt_client.configuring import check

    return check()


@click.group()
def server() -> None:
    """The server that nplt started in the background."""


@server.command("status")
def server_status() -> None:
    """Say whether it runs, and where."""
    from nplt_client.server_commands import print_server_status

    print_server_status()


@server.command("stop")
def server_stop() -> None:
    """Stop it; what it has promised is on disk first."""
    from nplt_client.server_commands import stop

    stop()


@server.command("log")
@click.option("-n", "--lines", type=click.IntRange(min=1), default=50, show_default=True)
def server_log(lines: int) -> None:
    """Show the end of its log."""
    from nplt_client.server_commands import print_log

    print_log(lines)


COMMANDS = (completion, config, server)
