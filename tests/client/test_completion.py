"""Tab: commands, options, and what the server knows; quick, silent, harmless."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pexpect  # type: ignore[import-untyped]
import pytest
from click.shell_completion import split_arg_string
from hypothesis import given
from hypothesis import strategies as st
from tests.client.nplt_process import SECONDS_MAX, private_environment, run_nplt
from tests.client.scripted_peer import Talk, scripted_peer
from tests.client.terminal_user import end

import nplt_client
from nplt_client.cli import completion, nplt
from nplt_client.cli.completion import completions
from nplt_client.render.text import sanitize_line


def words(line: str, shell: str = "fish") -> list[str]:
    return [offer.split("\t")[1] for offer in completions(nplt, line, shell=shell)]


def test_commands_options_and_choices_are_completed() -> None:
    assert {"ask", "chat", "export", "server"} <= set(words("nplt "))
    assert words("nplt hist") == ["history"]
    assert "--jsonl" in words("nplt ask --json")
    assert words("nplt export x --format h") == ["html"]
    assert words("nplt server st") == ["start", "status", "stop"]
    assert {"--continue", "--attach", "--detach"} <= set(words("nplt ask --"))
    for line in ("nplt import ", "nplt ask x -a "):
        assert [offer.split("\t")[0] for offer in completions(nplt, line, shell="bash")] == ["file"]


async def test_the_last_and_the_deleted_conversations_are_completed(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPLT_SERVER", server)
    monkeypatch.setattr(completion, "SECONDS_MAX", 30.0)
    assert words("nplt history @") == ["@last"]
    async with nplt_client.connect(server) as client:
        session_id = (await client.new("tossed out")).session_id
        await client.ask_text("hello")
        await client.delete(session_id)
    assert words("nplt undelete tossed") == ["tossed out"]
    assert words("nplt history tossed") == []


async def test_conversations_are_completed_by_name_and_by_id_if_ambiguous(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPLT_SERVER", server)
    monkeypatch.setattr(completion, "SECONDS_MAX", 30.0)
    ids: list[str] = []
    for name in ("tab $(touch x) it's", "tab twins", "tab twins", "tab\u202e red"):
        async with nplt_client.connect(server) as client:
            ids.append((await client.new(name)).session_id)
            await client.ask_text("hello")
    assert words("nplt history tab\\ ") == ["tab $(touch x) it's"]
    assert words("nplt ask -s tab", "bash") == ["tab\\ \\$\\(touch\\ x\\)\\ it\\'s"]
    assert words("nplt history 'tab", "bash") == [], "can't be said in quotation marks"
    assert ids[1] in words(f"nplt history {ids[1][:9]}")
    assert words("nplt ask -m off") == ["offline/echo"]
    assert words(f"nplt ask --server {server} -m off") == ["offline/echo"]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_bash_completion_escapes_names_exactly(name: str) -> None:
    name = sanitize_line(name)
    escaped = completion._for_bash(name, "", quoted=False)
    assert escaped is not None
    assert split_arg_string(escaped) == ([name] if name else [])


def test_bash_completion_replaces_only_the_part_after_a_colon() -> None:
    assert completion._for_bash("box/llama3:8b", "box/llama3:", quoted=False) == "8b"


def test_completion_does_not_wait_for_a_silent_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(completion, "SECONDS_MAX", 0.05)
    with scripted_peer(Talk.wait_until_gone) as peer:
        monkeypatch.setenv(completion.SHELL, "bash")
        monkeypatch.setenv(completion.LINE, f"nplt ask --server {peer.url} -s ")
        assert completion.complete(nplt) == 0
    assert capsys.readouterr() == ("", "")


def test_completion_never_starts_a_server(tmp_path: Path) -> None:
    environ = {
        "_NPLT_COMPLETE": "bash",
        "_NPLT_LINE": "nplt ask -s ",
        "NPLT_LISTEN__PORT": "1",
        "NPLT_TOKEN_FILE": "/no/such/file",
    }
    done = run_nplt(home=tmp_path, environ=environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


SETTING_UP = {
    "bash": (("--norc", "--noprofile"), "source <(nplt completion bash)"),
    "zsh": (("-f",), "autoload -Uz compinit; compinit -u -D; source <(nplt completion zsh)"),
    "fish": (("--no-config",), "nplt completion fish | source"),
}


def test_the_server_program_completes_its_commands(tmp_path: Path) -> None:
    environ = private_environment(tmp_path)
    run = partial(subprocess.run, capture_output=True, text=True, check=True, env=environ)
    command = [sys.executable, "-m", "nplt_server"]
    assert "nplt-server" in run([*command, "completion", "bash"]).stdout
    environ |= {
        "_NPLT_SERVER_COMPLETE": "bash_complete",
        "COMP_WORDS": "nplt-server doc",
        "COMP_CWORD": "1",
    }
    program = "from nplt_server.cli import main; main(prog_name='nplt-server')"
    assert run([sys.executable, "-c", program]).stdout == "plain,doctor\n"


@pytest.mark.parametrize("shell", sorted(SETTING_UP))
def test_pressing_tab_in_a_real_shell_completes(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    options, line = SETTING_UP[shell]
    program = tmp_path / "nplt"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m nplt_client "$@"\n')
    program.chmod(0o755)
    environ = private_environment(tmp_path)
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    terminal: Any = pexpect.spawn(
        shell, list(options), env=environ, encoding="utf-8", timeout=SECONDS_MAX
    )
    try:
        terminal.sendline(f"{line}; echo set''up")
        terminal.expect("setup")
        # Nothing a server is asked for: it has a second, and a busy machine may take two.
        terminal.send("nplt undel\t")
        terminal.expect("ete")
    finally:
        end(terminal)
