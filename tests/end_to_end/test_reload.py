"""SIGHUP: a running server takes over changed settings."""

from __future__ import annotations

import hashlib
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from tests.client.nplt_process import private_environment
from tests.conftest import Connect
from tests.support.certificates import make_certificate
from tests.support.raw_client import ERROR, MODEL_SWITCH, PROMPT, STATUS, TOOLS, RawClient
from tests.support.redis_server import wait_until
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
OFFLINE = {"type": "offline", "words_per_second": 0}


def user(name: str) -> dict[str, Any]:
    return {"name": name, "token_sha256": hashlib.sha256(name.encode()).hexdigest()}


def reload(server: ServerProcess, **changed: Any) -> None:
    """Changes the settings file, and waits until the server has dealt with it."""
    server.settings |= changed
    config = server.data_dir.parent / f"{server.data_dir.name}.yaml"
    config.write_text(yaml.safe_dump(server.settings))
    before = _reloads(server)
    server.signal(signal.SIGHUP)
    wait_until(lambda: _reloads(server) > before, "the server has read its settings")


def _reloads(server: ServerProcess) -> int:
    return server.log.count("took over changed settings") + server.log.count(
        "the settings stay as they were"
    )


def models(client: RawClient) -> list[str]:
    listed: list[str] = client.request(MODEL_SWITCH, {}).json["models"]
    return listed


def test_new_providers_answer_after_a_reload(start_server: Start, connect: Connect) -> None:
    server = start_server()
    client = connect(server)
    client.hello()
    assert "second/echo" not in models(client)
    providers = [{"id": name, **OFFLINE} for name in ("offline", "second")]
    reload(server, providers=providers, default_model="second/echo")
    assert "second/echo" in models(client)
    fresh = connect(server)
    assert fresh.hello()["model"] == "second/echo"
    assert fresh.ask("hello") == "hello"


def test_a_turn_that_runs_is_finished_by_the_provider_it_began_with(
    start_server: Start, connect: Connect
) -> None:
    server = start_server()
    client = connect(server)
    client.hello()
    receipt = client.request(PROMPT, {"text": "!slow 2 one two three"}).json
    reload(server, providers=[{"id": "other", **OFFLINE}], default_model="other/echo")
    assert client.answer_of(receipt["turn_id"]) == "one two three"


def test_a_hundred_reloads_under_load_lose_no_turn(start_server: Start, connect: Connect) -> None:
    server = start_server()
    done = threading.Event()
    failed: list[str] = []
    answered = 0

    def prompt(client: RawClient) -> None:
        nonlocal answered
        client.hello()
        number = 0
        while not done.is_set():
            text = f"prompt {number}"
            if client.ask(text) != text:
                failed.append(text)
            answered += 1
            number += 1

    threads = [threading.Thread(target=prompt, args=(connect(server),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(100):
        providers = [{"id": "offline", **OFFLINE}, {"id": f"more{number % 2}", **OFFLINE}]
        server.settings["providers"] = providers
        config = server.data_dir.parent / f"{server.data_dir.name}.yaml"
        # Replaced as a whole: the server may read it at any moment.
        written = config.with_suffix(".new")
        written.write_text(yaml.safe_dump(server.settings))
        written.replace(config)
        server.signal(signal.SIGHUP)
    wait_until(lambda: _reloads(server) > 0, "the server has read its settings")
    done.set()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert answered >= 4


def test_a_removed_token_closes_its_connections_and_a_new_one_is_accepted(
    start_server: Start, connect: Connect
) -> None:
    server = start_server(users=[user("ada"), user("bob")])
    ada, bob = connect(server), connect(server)
    ada.hello({"token": "ada"})
    bob.hello({"token": "bob"})
    reload(server, users=[user("bob"), user("eve")])
    assert bob.ask("still here") == "still here"
    last = ada.receive()
    assert (last.type, last.json["code"]) == (ERROR, "unauthorized")
    assert ada.sock.recv(1) == b""
    assert connect(server).hello({"token": "eve"})["user"] == "eve"
    assert connect(server).hello({"token": "ada"})["code"] == "unauthorized"


def test_a_new_certificate_is_used_for_new_connections(start_server: Start, tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    certificate = make_certificate(tmp_path / "tls")
    server = start_server(listen={"tls": certificate})

    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", server.port))

    first = shown()
    make_certificate(tmp_path / "tls")
    reload(server)
    assert shown() == Path(certificate["cert"]).read_text()
    assert shown() != first


def test_mistakes_change_nothing_and_are_logged(start_server: Start, connect: Connect) -> None:
    server = start_server()
    client = connect(server)
    client.hello()
    reload(server, default_model="nobody/nothing", providers=[{"id": "other", **OFFLINE}])
    assert "default_model" in server.log
    assert "other/echo" not in models(client)
    assert client.ask("still the same") == "still the same"


def test_settings_that_need_a_restart_are_named(start_server: Start) -> None:
    server = start_server()
    reload(server, limits={"turns_max": 3}, users=[user("ada")])
    (line,) = [line for line in server.log.splitlines() if "need a restart" in line]
    assert line.endswith("limits, users")


def test_tools_get_new_policies_and_mcp_servers_are_started_and_stopped(
    start_server: Start, connect: Connect
) -> None:
    server = start_server()
    client = connect(server)
    client.hello()

    def policy_of_now() -> str:
        tools = client.request(TOOLS).json["tools"]
        (policy,) = [tool["policy"] for tool in tools if tool["name"] == "now"]
        return str(policy)

    def mcp_servers() -> list[str]:
        return [*(client.request(STATUS).json.get("mcp_servers") or ())]

    assert (policy_of_now(), mcp_servers()) == ("allow", [])
    reload(server, tools={"now": "deny"}, mcp_servers={"away": {"command": ["/nonexistent"]}})
    assert (policy_of_now(), mcp_servers()) == ("deny", ["away"])
    reload(server, tools={}, mcp_servers={})
    assert (policy_of_now(), mcp_servers()) == ("allow", [])
    assert client.ask("hello") == "hello"


def test_the_command_reports_what_changed_what_waits_and_what_is_wrong(tmp_path: Path) -> None:
    environ = private_environment(tmp_path)
    config = tmp_path / ".config" / "nplt" / "server.yaml"
    config.parent.mkdir(parents=True)

    def nplt_server(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "nplt_server", *arguments]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)

    none = nplt_server("reload")
    assert (none.returncode, "no server of yours" in none.stderr) == (1, True)
    config.write_text("{}")
    process = subprocess.Popen(
        [sys.executable, "-m", "nplt_server", "--port", "0"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"listening on ")
        config.write_text("{tools: {now: deny}, limits: {turns_max: 7}}")
        done = nplt_server("reload")
        assert done.stdout == "changed: tools\ntake effect at the next start: limits\n"
        config.write_text("{tools: {now: maybe}}")
        wrong = nplt_server("reload")
        assert (wrong.returncode, "tools.now" in wrong.stderr) == (78, True)
    finally:
        process.terminate()
        process.communicate(timeout=60)
