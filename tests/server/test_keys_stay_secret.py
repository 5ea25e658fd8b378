"""A vendor's key is nowhere but on its way to the vendor: not in a log, a frame or a file.

The whole server, talked to over sockets while it logs all it can, asks vendors that
quote the key back at it in every way there is to fail.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from tests.support.logging_state import restored_logging
from tests.support.raw_client import (
    CONTEXT_REQUEST,
    HISTORY_REQUEST,
    PROMPT,
    STATUS,
    TOOLS,
    TURN_FINISHED,
    USAGE,
    RawClient,
)
from tests.vendors.answers import Answer, Call, Text, Thinking, ToolCall, say
from tests.vendors.emulator import emulator
from tests.vendors.rejections import Rejection

from nplt_server import app
from nplt_server.app import Server
from nplt_server.logs import configure_logging
from nplt_server.providers.router import ProviderRouter
from nplt_server.settings_loader import load_settings
from nplt_server.start import serve

CANARY = "sk-canary-4b1d5eafca11ab1e"
MODELS = ("chat/gpt-4.1", "responses/gpt-5.6", "claude/claude-opus-5-5")
STATUSES = (400, 401, 403, 404, 413, 429, 500)


def quoting(call: Call) -> Answer:
    """Answers, or fails with the status the prompt asks for and the key in its words."""
    body_text = str(call.body)
    wishes = {body_text.rfind(f"fail with {status}"): status for status in STATUSES}
    last = max(wishes)
    if body_text.rfind("now answer") >= last:
        return say("all is well")
    words = f"messages.0: {CANARY} is wrong: {dict(call.headers)}"
    raise Rejection(words, status=wishes[last], kind=CANARY, param=CANARY, code=CANARY)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    with restored_logging():
        yield


@asynccontextmanager
async def serving(tmp_path: Path, settings: dict[str, Any]) -> AsyncIterator[int]:
    """Its port; when this is left, it has drained and is gone."""
    flags = {"listen": {"port": 0}, "data_dir": str(tmp_path / "data"), **settings}
    loaded = load_settings(flags, config_file=Path("/dev/null"))
    listening: list[Server] = []
    ports: list[int] = []
    is_ready = anyio.Event()

    def ready(server: Server) -> None:
        listening.append(server)
        is_ready.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve, loaded, lambda host, port, http_url: ports.append(port), ready)
        await is_ready.wait()
        yield ports[0]
        listening[0].stop()


def talk(port: int) -> tuple[list[str], bytes]:
    """How each turn ended, and all that was heard."""
    states: list[str] = []
    payloads: list[bytes] = []
    with RawClient(port) as client:
        payloads.append(str(client.hello({"client": "test"})).encode())
        for model in MODELS:
            for text in (*(f"fail with {status}" for status in STATUSES), "now answer"):
                asked = client.request(PROMPT, {"text": text, "model": model})
                finished = _finished(client, asked.json["turn_id"], payloads)
                states.append(finished["state"])
        for request in (STATUS, HISTORY_REQUEST, CONTEXT_REQUEST, USAGE):
            payloads.append(client.request(request, {}).payload)
    return states, b"".join(payloads)


def greet(port: int) -> None:
    with RawClient(port) as client:
        assert client.greeting()


def _finished(client: RawClient, turn_id: str, payloads: list[bytes]) -> Any:
    for frame in client.events():
        payloads.append(frame.payload)
        if frame.type == TURN_FINISHED and frame.json["turn_id"] == turn_id:
            return frame.json
    raise AssertionError("unreachable")


def providers(url: str, key_file: Path) -> list[dict[str, Any]]:
    openai = {"type": "openai", "base_url": f"{url}/v1", "api_key_env": "CANARY_KEY"}
    return [
        {**openai, "id": "chat", "models": ["gpt-4.1"]},
        {**openai, "id": "responses", "models": ["gpt-5.6"], "api": "responses"},
        {
            "id": "claude",
            "type": "anthropic",
            "base_url": url,
            "api_key_file": str(key_file),
            "models": ["claude-opus-5-5"],
        },
    ]


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_a_key_is_in_no_log_no_frame_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_format: Any
) -> None:
    log_path, key_file = tmp_path / "log", tmp_path / "vendor.key"
    key_file.write_text(CANARY)
    key_file.chmod(0o600)
    monkeypatch.setenv("CANARY_KEY", CANARY)
    monkeypatch.setenv("NPLT_DEBUG", "all")
    with log_path.open("w") as log:
        monkeypatch.setattr(sys, "stderr", log)
        configure_logging("debug", log_format=log_format)
        async with emulator(quoting, key=CANARY) as vendors:
            settings = {
                "providers": providers(vendors.url, key_file),
                "limits": {"retries_max": 0},
            }
            async with serving(tmp_path, settings) as port:
                states, payloads = await to_thread.run_sync(talk, port)
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("data/**/*") if path.is_file())
    logged = log_path.read_bytes()
    assert states == (["failed"] * len(STATUSES) + ["completed"]) * len(MODELS)
    # It was there to be found, and whoever looks would find it.
    assert sum(CANARY in str(each.headers) for each in vendors.received) >= len(states)
    assert all(b"all is well" in each for each in (payloads, files))
    assert b"now answer" in logged
    assert CANARY.encode() not in payloads + files + logged


async def test_a_provider_that_does_not_close_does_not_delay_the_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closings: list[ProviderRouter] = []

    async def never(router: ProviderRouter) -> None:
        closings.append(router)
        await anyio.sleep_forever()

    monkeypatch.setattr(ProviderRouter, "aclose", never)
    monkeypatch.setattr(app, "_PROVIDERS_SECONDS_MAX", 0.01)
    async with serving(tmp_path, {"providers": [{"type": "offline"}]}) as port:
        await to_thread.run_sync(greet, port)
    assert len(closings) == 1


LEAKED = "ghp_0f1e2d3c4b5a69788796a5b4c3d2e1f0"


def telling(call: Call) -> Answer:
    """Tells the key in its thoughts, its words, and what it calls a tool with."""
    if call.number % 2:
        wrong = ToolCall(f"now-{CANARY}", json.dumps({"zone": CANARY}))
        return Answer(parts=(Thinking(f"it is {CANARY}!"), Text(f"I see {CANARY}; "), wrong))
    return say(f"your key is {CANARY}: all is well")


def tell(port: int) -> tuple[list[str], bytes]:
    payloads: list[bytes] = []
    states: list[str] = []
    with RawClient(port) as client:
        client.hello({"client": "test"})
        while b"leak__fail" not in (listed := client.request(TOOLS, {}).payload):
            pass
        payloads.append(listed)
        asked = [(model, "now answer") for model in MODELS]
        for model, text in (*asked, ("offline/echo", "!tool leak__fail {}")):
            turn = client.request(PROMPT, {"text": text, "model": model}).json["turn_id"]
            states.append(_finished(client, turn, payloads)["state"])
        for request in (STATUS, HISTORY_REQUEST, CONTEXT_REQUEST, USAGE):
            payloads.append(client.request(request, {}).payload)
    return states, b"".join(payloads)


async def test_a_key_that_a_model_or_a_tool_tells_is_masked_in_frames_files_and_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_file = tmp_path / "vendor.key"
    key_file.write_text(CANARY)
    key_file.chmod(0o600)
    monkeypatch.setenv("CANARY_KEY", CANARY)
    tool = {"name": "fail", "description": f"uses {LEAKED}", "inputSchema": {"type": "object"}}
    server = str(Path(__file__).parents[1] / "support" / "odd_mcp_server.py")
    leak = {
        "command": [sys.executable, "-I", "-S", server, json.dumps([[tool]])],
        "env": {"GITHUB_TOKEN": LEAKED, "EVIL": f"tried {LEAKED}, and model 1 of ollama"},
        "policy": "allow",
    }
    async with emulator(telling, key=CANARY) as vendors:
        settings = {
            "providers": [*providers(vendors.url, key_file), {"type": "offline"}],
            "mcp_servers": {"leak": leak},
        }
        async with serving(tmp_path, settings) as port:
            states, payloads = await to_thread.run_sync(tell, port)
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("data/**/*") if path.is_file())
    assert states == ["completed"] * 4
    assert all(b"all is well" in each for each in (payloads, files))
    assert b"tried [secret], and model 1 of ollama" in payloads
    assert b"your key is [secret]: all is well" in files
    for secret in (CANARY.encode(), LEAKED.encode()):
        assert secret not in payloads
        assert secret not in files
