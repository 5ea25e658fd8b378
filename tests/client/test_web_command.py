"""`nplt web`, as a user would run it."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.client.nplt_process import private_environment, run_nplt
from tests.gateway.http_client import request
from tests.support.server_process import ServerProcess

ADDRESS = re.compile(r"^(http://127\.0\.0\.1:\d+/)#code=([A-Z2-9-]{14})$", re.M)


@pytest.fixture
def address(shared_server: ServerProcess) -> str:
    return f"nplt://127.0.0.1:{shared_server.port}"


def test_it_prints_an_address_with_a_code_that_logs_in(address: str, tmp_path: Path) -> None:
    done = run_nplt("web", "--no-open", home=tmp_path, server=address)
    assert done.returncode == 0
    found = ADDRESS.search(done.stdout)
    assert found is not None
    url, code = found.groups()
    assert request(f"{url}login", "POST", body={"code": code}).status == 200
    assert request(f"{url}login", "POST", body={"code": code}).status == 401


def test_the_browser_gets_the_address_from_a_private_file(address: str, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\n')
    browser.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "nplt_client", "web", "--server", address],
        env=private_environment(tmp_path, BROWSER=str(browser), DISPLAY=":0"),
        capture_output=True,
        text=True,
        check=True,
    )
    found = ADDRESS.search(done.stdout)
    assert found is not None
    arguments = (tmp_path / "arguments").read_text().strip()
    assert found[2] not in arguments
    file = Path(arguments.removeprefix("file://"))
    assert found[2] in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_qr_code_for_a_local_address_says_what_a_phone_needs(
    address: str, tmp_path: Path
) -> None:
    done = run_nplt("web", "--qr", home=tmp_path, server=address)
    assert "█" in done.stdout
    assert "ssh -L" in done.stderr
    assert "tls:" in done.stderr


def test_logins_are_listed_and_revoked(address: str, tmp_path: Path) -> None:
    done = run_nplt("web", "--no-open", home=tmp_path, server=address)
    found = ADDRESS.search(done.stdout)
    assert found is not None
    agent = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"}
    request(f"{found[1]}login", "POST", body={"code": found[2]}, headers=agent)
    listed = run_nplt("web", "--sessions", home=tmp_path, server=address).stdout
    (line,) = [line for line in listed.splitlines() if "Firefox on Linux" in line]
    login_id = line.split()[0]
    assert run_nplt("web", "--revoke", login_id, home=tmp_path, server=address).returncode == 0
    assert login_id not in run_nplt("web", "--sessions", home=tmp_path, server=address).stdout
    again = run_nplt("web", "--revoke", login_id, home=tmp_path, server=address)
    assert (again.returncode, again.stderr) == (2, "nplt: there is no such login\n")
