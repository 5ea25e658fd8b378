"""The server under systemd: sockets that it passes, what it is told, and the units themselves."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from tests.client.nplt_process import NPLT, private_environment
from tests.gateway.http_client import request
from tests.support.ports import free_port

SECONDS_MAX = 30.0
UNITS = ("nplt-http.socket", "nplt.service", "nplt.socket")
AS_FIRST_DESCRIPTOR = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.set_inheritable(3, True); "
    "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1', LISTEN_FDNAMES='nplt'); "
    "os.execv(sys.executable, [sys.executable, '-m', 'nplt_server', *sys.argv[2:]])"
)


@contextmanager
def server_on(
    listening: socket.socket, home: Path, *arguments: str, **environ: str
) -> Iterator[subprocess.Popen[str]]:
    """A server that got the socket as systemd passes it."""
    process = subprocess.Popen(
        [sys.executable, "-c", AS_FIRST_DESCRIPTOR, str(listening.fileno()), *arguments],
        env=private_environment(home, **environ),
        pass_fds=[listening.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS_MAX)


@contextmanager
def notified(folder: Path) -> Iterator[socket.socket]:
    """The socket of a service manager that is told the server's states."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(folder / "notify"))
        sock.settimeout(SECONDS_MAX)
        yield sock


def greeting_of(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX) as client:
        return client.recv(100)


def test_a_restart_with_a_passed_socket_refuses_no_connection(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with server_on(listening, tmp_path) as first:
            assert first.stdout is not None
            assert first.stdout.readline() == f"listening on 127.0.0.1:{port}\n"
            assert b"nplt" in greeting_of(port)
        with (
            socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX) as between,
            server_on(listening, tmp_path),
        ):
            assert b"nplt" in between.recv(100)


@pytest.mark.skipif(
    shutil.which("systemd-socket-activate") is None, reason="systemd is not installed"
)
def test_systemd_passes_the_sockets_of_both_ports(tmp_path: Path) -> None:
    nplt, http = free_port(), free_port()
    process = subprocess.Popen(
        [
            *("systemd-socket-activate", "--fdname=nplt:http"),
            *(f"--listen=127.0.0.1:{nplt}", f"--listen=127.0.0.1:{http}"),
            *("--setenv=HOME", "--setenv=PATH", sys.executable, "-m", "nplt_server"),
        ],
        env=private_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with until_connected(nplt) as first:
            assert b"nplt" in first.recv(100)
        assert request(f"http://127.0.0.1:{http}/livez").body == b"ok\n"
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS_MAX)


def until_connected(port: int) -> socket.socket:
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "nothing listens"
            time.sleep(0.02)


def test_systemd_receives_ready_status_watchdog_and_stopping(tmp_path: Path) -> None:
    with (
        notified(tmp_path) as manager,
        socket.create_server(("127.0.0.1", 0)) as listening,
        server_on(
            listening,
            tmp_path,
            NOTIFY_SOCKET=str(tmp_path / "notify"),
            WATCHDOG_USEC="100000",
        ) as process,
    ):
        port = listening.getsockname()[1]
        ready = manager.recv(1000).decode()
        assert ready == f"READY=1\nSTATUS=listening on 127.0.0.1:{port}"
        assert [manager.recv(1000) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        process.send_signal(signal.SIGTERM)
        while (state := manager.recv(1000)) == b"WATCHDOG=1":
            pass
        assert state.startswith(b"STOPPING=1\n")


@pytest.mark.parametrize("family", ["public", "unix"])
def test_an_unsafe_socket_from_systemd_is_refused(family: str, tmp_path: Path) -> None:
    if family == "unix":
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        why = "no listening TCP socket"
    else:
        listening, why = socket.create_server(("0.0.0.0", 0)), "needs users with tokens and tls"
    with listening, server_on(listening, tmp_path) as process:
        assert process.wait(SECONDS_MAX) == 1
        assert process.stderr is not None
        assert why in process.stderr.read()


@pytest.fixture
def systemd_analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("systemd is not installed")
    return found


def units_in(home: Path) -> Path:
    done = subprocess.run(
        [*NPLT, "server", "install"],
        env=private_environment(home),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    assert "systemctl --user enable --now nplt.socket nplt-http.socket\n" in done.stdout
    return home / ".config" / "systemd" / "user"


def test_the_units_of_a_user_are_valid_and_can_be_removed(
    systemd_analyze: str, tmp_path: Path
) -> None:
    folder = units_in(tmp_path)
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [*UNITS]
    done = subprocess.run(
        [systemd_analyze, "--user", "verify", *files],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    subprocess.run(
        [*NPLT, "server", "install", "--uninstall"],
        env=private_environment(tmp_path),
        capture_output=True,
        check=True,
    )
    assert list(folder.iterdir()) == []


def test_the_service_of_the_system_is_hardened(systemd_analyze: str, tmp_path: Path) -> None:
    from nplt_client.cli.service import unit_files

    for path, text in unit_files(for_system=True).items():
        (tmp_path / path.name).write_text(text)
    files = [str(tmp_path / name) for name in UNITS]
    verified = subprocess.run([systemd_analyze, "verify", *files], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    done = subprocess.run(
        [systemd_analyze, "security", "--offline=true", files[1]], capture_output=True, text=True
    )
    overall = re.search(r"exposure level for nplt\.service: ([\d.]+)", done.stdout)
    assert overall is not None
    assert float(overall[1]) <= 3.0


@pytest.mark.parametrize(
    ("place", "is_refused"),
    [("/home/ada/venv", True), ("/tmp/venv", True), ("/opt/nplt", False), ("/homes/nplt", False)],
)
def test_the_service_of_the_system_must_be_able_to_read_its_program(
    place: str, is_refused: bool
) -> None:
    from nplt_client.cli.service import check_visible
    from nplt_client.errors import ConfigurationError

    refused = pytest.raises(ConfigurationError, match=f"can't read {place}")
    with refused if is_refused else nullcontext():
        check_visible("/usr", place)


def test_without_units_or_root_the_system_install_says_why(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write the units")
    done = subprocess.run(
        [*NPLT, "server", "install", "--system"],
        env=private_environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert "--system needs root" in done.stderr


def test_a_command_starts_the_installed_service_instead_of_a_second_server(tmp_path: Path) -> None:
    units_in(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    fake = programs / "systemctl"
    fake.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/called\n'
        f"setsid {sys.executable} -m nplt_server --port 0 >{tmp_path}/out 2>&1 </dev/null &\n"
        f"until [ -s {tmp_path}/.local/state/nplt/server.json ]; do sleep 0.05; done\n"
    )
    fake.chmod(0o755)
    environ = private_environment(tmp_path, PATH=f"{programs}:{os.environ['PATH']}")
    environ.pop("NPLT_SERVER", None)
    asked = subprocess.run(
        [*NPLT, "ask", "hello"], env=environ, capture_output=True, text=True, timeout=SECONDS_MAX
    )
    try:
        assert (asked.stdout, asked.returncode) == ("hello\n", 0), asked.stderr
        assert "started nplt-server by systemd" in asked.stderr
        assert (tmp_path / "called").read_text() == "--user start nplt.service\n"
    finally:
        subprocess.run([*NPLT, "server", "stop"], env=environ, capture_output=True)
