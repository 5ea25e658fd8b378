"""`ssh://` addresses: a client whose frames go through a real sshd on the loopback interface."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.nplt_process import NPLT, private_environment

import nplt_client
from nplt_client.errors import CannotConnect, ConfigurationError
from nplt_client.settings import find_address, parse_url
from nplt_client.wire.ssh import ssh_command

_SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
needs_sshd = pytest.mark.skipif(
    _SSHD is None or shutil.which("ssh") is None or os.geteuid() != 0,
    reason="needs sshd, ssh and root",
)


class OtherMachine:
    """An sshd whose sessions have a home of their own, with nplt in ~/.local/bin."""

    def __init__(self, folder: Path, local: Path) -> None:
        self.home, self._folder = folder / "home", folder
        programs = self.home / ".local" / "bin"
        programs.mkdir(parents=True)
        nplt = programs / "nplt"
        nplt.write_text(f'#!/bin/sh\nexec {" ".join(NPLT)} "$@"\n')
        nplt.chmod(0o755)
        for name in ("host", "user"):
            key = str(folder / name)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1:{self.port}\nHostKey {folder}/host\nUsePAM no\n"
            f"AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nPidFile none\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            f"SetEnv HOME={self.home} PATH=/usr/bin:/bin\n"
        )
        settings = self.home / ".config" / "nplt" / "server.yaml"
        settings.parent.mkdir(parents=True)
        settings.write_text(f"listen: {{port: {_free_port()}}}\nproviders: [{{type: offline}}]\n")
        public = " ".join((folder / "host.pub").read_text().split()[:2])
        (folder / "known").write_text(f"[127.0.0.1]:{self.port} {public}\n")
        # ssh reads the settings of the user who runs it, wherever HOME is.
        local.mkdir()
        ssh = local / "ssh"
        ssh.write_text(
            f"#!/bin/sh\nexec {shutil.which('ssh')} -F /dev/null -i {folder}/user "
            f'-o UserKnownHostsFile={folder}/known -o IdentitiesOnly=yes "$@"\n'
        )
        ssh.chmod(0o755)
        Path("/run/sshd").mkdir(exist_ok=True)
        assert _SSHD is not None
        self._sshd = subprocess.Popen(
            [_SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL
        )
        self.url = f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}"
        _wait_for_port(self.port)

    def server_pid(self) -> int:
        described = (self.home / ".local/state/nplt/server.json").read_bytes()
        return int(json.loads(described)["pid"])

    def close(self) -> None:
        self._sshd.kill()
        self._sshd.wait()
        if (self.home / ".local/state/nplt/server.json").exists():
            os.kill(self.server_pid(), signal.SIGTERM)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _wait_for_port(port: int) -> None:
    give_up = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < give_up
            time.sleep(0.05)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OtherMachine]:
    remote = tmp_path / "remote"
    remote.mkdir()
    there = OtherMachine(remote, tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    yield there
    there.close()


def _nplt(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = private_environment(home, PATH=os.environ["PATH"])
    return subprocess.run(
        [*NPLT, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip


@needs_sshd
def test_ask_over_ssh_starts_the_server_there_and_finds_its_conversations(
    machine: OtherMachine, tmp_path: Path
) -> None:
    url = f"{machine.url}/my-notes"

    asked = _nplt("ask", "hello there", "--server", url, "--create", home=tmp_path)
    listed = _nplt("sessions", "--server", machine.url, home=tmp_path)

    assert asked.stdout.strip().endswith("hello there"), asked.stderr
    assert "my-notes" in listed.stdout
    assert list((machine.home / ".local/share/nplt/history").glob("*.json"))
    assert not (tmp_path / ".local/share/nplt").exists()


@needs_sshd
async def test_a_client_over_ssh_reconnects_and_resumes_its_turn_after_the_connection_is_cut(
    machine: OtherMachine,
) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    async with nplt_client.connect(machine.url) as client:
        text, is_cut = "", False
        async with client.ask(f"!slow 3 {words}") as turn:
            async for event in turn:
                if isinstance(event, nplt_client.TextDelta):
                    text += event.text
                    if not is_cut:
                        is_cut = True
                        subprocess.run(["pkill", "-KILL", "-f", f"ssh .*{machine.port}"])
    assert is_cut
    assert text.strip() == words


@needs_sshd
def test_the_error_of_ssh_is_shown_as_it_is(machine: OtherMachine, tmp_path: Path) -> None:
    (machine.home / ".local/bin/nplt").unlink()

    missing = _nplt("ask", "hello", "--server", machine.url, home=tmp_path)
    closed = _nplt("ask", "hello", "--server", f"ssh://127.0.0.1:{_free_port()}", home=tmp_path)

    assert missing.returncode == closed.returncode == CannotConnect.exit_code
    assert "nplt: not found" in missing.stderr
    assert "nplt has to be installed there" in missing.stderr
    assert "Connection refused" in closed.stderr
    assert closed.stderr.startswith("nplt: can't connect to ssh://127.0.0.1")


@pytest.mark.parametrize("url", ["ssh://-oProxyCommand=x", "ssh://-l@host", "ssh://-x@host/name"])
def test_an_ssh_host_or_user_that_begins_with_a_hyphen_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="can't begin with"):
        parse_url(url)


def test_the_ssh_command_holds_no_name_of_a_conversation_and_ends_options_before_the_host() -> None:
    command = ssh_command(parse_url("ssh://ada@box:2222/rm%20-rf"), may_ask=False)

    assert command[:-1] == [
        "ssh", "-T", "-o", "BatchMode=yes", "-p", "2222", "-l", "ada", "--", "box"
    ]  # fmt: skip
    assert "rm" not in command[-1]


def test_client_toml_gives_servers_names(tmp_path: Path) -> None:
    settings = tmp_path / "nplt" / "client.toml"
    settings.parent.mkdir()
    settings.write_text('[servers]\nbox = "ssh://ada@box"\n')
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}

    assert str(find_address("box", environ)) == "ssh://ada@box"
    assert str(find_address(None, {**environ, "NPLT_SERVER": "box"})) == "ssh://ada@box"
    with pytest.raises(ConfigurationError, match=r"client\.toml names box"):
        find_address("bax", environ)
