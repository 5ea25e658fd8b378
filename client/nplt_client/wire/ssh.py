"""Connections over ssh, for `ssh://host` addresses: frames travel over the stdin and stdout of
`ssh host nplt pipe`, so the other machine needs no open port, token or certificate.

ssh itself logs in, with its own settings, keys, agent and questions. Only a first connection may
ask for a password: a later one would write into the screen of a chat. What ssh prints on stderr
becomes the message of the error.
"""

from __future__ import annotations

import os
import socket
import subprocess
from threading import Thread

from nplt_client.errors import CannotConnect, ConnectionLost, NpltError
from nplt_client.settings import Address

_REMOTE_COMMAND = "sh -c 'PATH=$PATH:$HOME/.local/bin exec nplt pipe'"
"""A shell that is not interactive often lacks ~/.local/bin, where pipx and uv install programs."""
_IGNORING_INTERRUPTS = 'trap "" INT QUIT; exec ssh "$@"'
"""Ctrl+C cancels a turn, so it must not end the connection that carries CANCEL."""
_ERROR_BYTES_MAX = 4096
_END_SECONDS_MAX = 2.0


class SshLink:
    """A running `ssh`. Its owner reads and writes `socket`; closing that ends ssh."""

    def __init__(self, address: Address, *, may_ask: bool) -> None:
        self._address = address
        self._errors = b""
        self.socket, its_end = socket.socketpair()
        with its_end:
            self._process = subprocess.Popen(
                ["sh", "-c", _IGNORING_INTERRUPTS, *ssh_command(address, may_ask=may_ask)],
                stdin=its_end.fileno(),
                stdout=its_end.fileno(),
                stderr=subprocess.PIPE,
            )
        self._reader = Thread(target=self._read_errors, name="nplt-ssh", daemon=True)
        self._reader.start()

    def _read_errors(self) -> None:
        """Reads until ssh has ended, and reaps it."""
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            while piece := os.read(stderr.fileno(), _ERROR_BYTES_MAX):
                self._errors = (self._errors + piece)[-_ERROR_BYTES_MAX:]
        self._process.wait()

    def why_lost(self, *, at_the_start: bool) -> NpltError:
        """The error for a connection that ended. Waits a moment for ssh to end."""
        self._reader.join(_END_SECONDS_MAX)
        code, said = self._process.returncode, self._errors.decode(errors="replace").strip()
        if not code and not at_the_start:
            return ConnectionLost("the server closed the connection")
        lines = [line.rstrip() for line in said.splitlines()]
        reason = "\n".join(lines) or f"ssh ended with code {code}"
        hint = "\nnplt has to be installed there, in the PATH or in ~/.local/bin"
        missing = code in (126, 127) and "nplt" in said
        message = f"can't connect to {self._address}: {reason}{hint if missing else ''}"
        return CannotConnect(message) if at_the_start else ConnectionLost(message)


def ssh_command(address: Address, *, may_ask: bool) -> list[str]:
    """The name of the conversation is not in it: that travels in frames."""
    return [
        "ssh",
        "-T",
        *([] if may_ask else ["-o", "BatchMode=yes"]),
        *(["-p", str(address.port)] if address.port else []),
        *(["-l", address.user] if address.user else []),
        "--",
        address.host,
        _REMOTE_COMMAND,
    ]
