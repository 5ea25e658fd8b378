"""What a call costs in programs that people run instead: prints CPU milliseconds per turn.

    python other_turns.py litellm|pydantic_ai|agents TURNS PATH

Run by the interpreter of the environment in which they are installed, so nothing of this
repository is imported. `PATH` names a file or directory that may be made.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import secrets
import socket
import sqlite3
import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WARM_UP = 5
START_SECONDS_MAX = 180.0
_CPU_CLOCK_OF_PROCESS = 2


def litellm(turns: int, path: Path) -> float:
    if find_spec("litellm") is None:  # importing it takes seconds
        raise ModuleNotFoundError("litellm is not installed in .venv-peers")
    path.mkdir()
    config = path / "config.yaml"
    # Without a key it refuses to start; the list of models' prices would come from the network.
    key = f"sk-{secrets.token_hex(32)}"
    known = {"LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    mock = {"model": "openai/echo", "api_key": "none", "mock_response": "hello world"}
    config.write_text(json.dumps({"model_list": [{"model_name": "echo", "litellm_params": mock}]}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).parent / "litellm"), "--config", str(config)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    with (path / "log").open("wb") as log:
        proxy = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **known})
    with proxy:
        try:
            connection = _connected(port, key, proxy)
            for _ in range(WARM_UP):
                _complete(connection, key)
            before = _cpu_seconds(proxy.pid)
            for _ in range(turns):
                _complete(connection, key)
            return (_cpu_seconds(proxy.pid) - before) / turns
        finally:
            proxy.terminate()


def _connected(port: int, key: str, proxy: subprocess.Popen[bytes]) -> http.client.HTTPConnection:
    until = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < until and proxy.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS_MAX)
        try:
            _complete(connection, key)
        except OSError:
            time.sleep(0.2)
        else:
            return connection
    raise TimeoutError("the proxy did not start")


def _complete(connection: http.client.HTTPConnection, key: str) -> None:
    body = {"model": "echo", "messages": [{"role": "user", "content": "hello world"}]}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    data = answer.read()
    if answer.status != http.client.OK:
        raise ConnectionRefusedError(f"the proxy answered {answer.status}: {data[:200]!r}")


def _cpu_seconds(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK_OF_PROCESS)


def pydantic_ai(turns: int, path: Path) -> float:
    """Each turn is one run, whose new messages are committed to SQLite."""
    library, testing = import_module("pydantic_ai"), import_module("pydantic_ai.models.test")
    agent = library.Agent(testing.TestModel(custom_output_text="hello world"))
    database = sqlite3.connect(path)
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, data BLOB)")

    async def turn(history: list[Any]) -> list[Any]:
        result = await agent.run("hello world", message_history=history)
        database.execute("INSERT INTO messages (data) VALUES (?)", (result.new_messages_json(),))
        database.commit()
        return list(result.all_messages())

    return _cost(turn, turns)


def agents(turns: int, path: Path) -> float:
    """Each turn is one run with a `SQLiteSession`."""
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    library, types = import_module("agents"), import_module("openai.types.responses")

    async def get_response(self: object, *arguments: Any, **options: Any) -> Any:
        text = types.ResponseOutputText(text="hello world", type="output_text", annotations=[])
        message = types.ResponseOutputMessage(
            id="m1", content=[text], role="assistant", status="completed", type="message"
        )
        return library.ModelResponse(output=[message], usage=library.Usage(), response_id=None)

    def stream_response(self: object, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    methods = {"get_response": get_response, "stream_response": stream_response}
    instant = type("Instant", (library.Model,), methods)
    agent = library.Agent(name="echo", model=instant())
    session = library.SQLiteSession("s1", path)

    async def turn(history: list[Any]) -> list[Any]:
        await library.Runner.run(agent, "hello world", session=session)
        return history

    return _cost(turn, turns)


def _cost(turn: Any, turns: int) -> float:
    async def run() -> float:
        history: list[Any] = []
        for _ in range(WARM_UP):
            history = await turn(history)
        before = time.process_time()
        for _ in range(turns):
            history = await turn(history)
        return (time.process_time() - before) / turns

    return asyncio.run(run())


if __name__ == "__main__":
    measure = {"litellm": litellm, "pydantic_ai": pydantic_ai, "agents": agents}[sys.argv[1]]
    print(measure(int(sys.argv[2]), Path(sys.argv[3])) * 1e3)
