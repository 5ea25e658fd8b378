"""`python -m tests.real_servers [NAME …] [--turns N]`: conversations with servers of models.

llama.cpp, LiteLLM in front of it, aimock and fakellm run on this machine, in environments in
`.venv-servers` that are made when they are first needed (1 GB). With each of them the server holds
one conversation of 200 turns, through every API it speaks, and in the forms of Mistral and of
models without tools. Prompts have pictures, PDFs, tools, schemas and options; answers are cut, gone
on with or cancelled; and turns of another provider come in between, which calls tools too. The
turns are drawn with a fixed seed.

No turn may fail because the server refuses the form of a request, and nothing may be hidden.
Exit code 0: so it is. 1: it is not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
from msgspec import Struct
from tests.end_to_end.test_servers_with_rules_of_their_own import picture
from tests.support.llama.server import LlamaServer
from tests.support.pdfs import pdf
from tests.support.server_process import ServerProcess

import nplt_client

ENVIRONMENTS = Path(__file__).parents[2] / ".venv-servers"
WINDOW_TOKENS = 8_192
SECONDS_MAX = 60
_EXPECTED = frozenset({"schema_mismatch", "conflict", "too_large", "no answer"})
"""The codes of turns and prompts that rightly fail: these models write no JSON, there is not always
an answer to go on with, the window is small, and an answer may be cut before its first word."""


class Place(Struct, frozen=True, kw_only=True):
    """A server of models: its address without `/v1`, the model, and the APIs that it speaks."""

    url: str
    model: str
    apis: tuple[str, ...]
    key: str = "none"

    @property
    def providers(self) -> tuple[str, ...]:
        """The providers at that place: one for each API, one whose requests have Mistral's form,
        and one whose model takes no tools."""
        return (*self.apis, "mistral", "without_tools")


def environment(name: str, *packages: str) -> Path:
    """The directory with the programs of these Python packages."""
    path = ENVIRONMENTS / name
    if not (path / ".installed").exists():
        print(f"installing {', '.join(packages)} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)
        pip = [str(path / "bin" / "python"), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, *packages], check=True)
        (path / ".installed").touch()
    return path / "bin"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def program(*command: object, port: int, directory: Path, **variables: str) -> Iterator[str]:
    """Runs a server until the end of the block; its address."""
    log = (directory / "log").open("wb")
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=directory,
        env={**os.environ, "HOME": str(directory), **variables},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        _wait_for(port, process, directory)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
        log.close()


def _wait_for(port: int, process: subprocess.Popen[bytes], directory: Path) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"it does not listen: {(directory / 'log').read_text()[-2_000:]}")


# ------------------------------------------------------------------------------
# The servers


@contextmanager
def llama_cpp(directory: Path) -> Iterator[Place]:
    server = LlamaServer(window_tokens=WINDOW_TOKENS)
    try:
        yield Place(url=server.url, model="made-by-hand", apis=("chat", "responses", "messages"))
    finally:
        server.close()


@contextmanager
def litellm(directory: Path) -> Iterator[Place]:
    programs = environment("litellm", "litellm[proxy]==1.106.2")
    with llama_cpp(directory) as behind:
        target = {"model": f"openai/{behind.model}", "api_base": f"{behind.url}/v1", "api_key": "x"}
        config = directory / "config.yaml"
        config.write_text(
            json.dumps({"model_list": [{"model_name": "m", "litellm_params": target}]})
        )
        port = free_port()
        arguments = ("--config", config, "--host", "127.0.0.1", "--port", port)
        key = f"sk-{secrets.token_hex(16)}"
        command, more = (programs / "litellm", *arguments), {"LITELLM_MASTER_KEY": key}
        with program(*command, port=port, directory=directory, **more) as url:
            yield Place(url=url, model="m", apis=("chat", "responses", "messages"), key=key)


@contextmanager
def aimock(directory: Path) -> Iterator[Place]:
    if shutil.which("npm") is None:
        raise RuntimeError("aimock needs node and npm")
    path = ENVIRONMENTS / "aimock"
    if not (path / ".installed").exists():
        print("installing @copilotkit/aimock …", flush=True)
        path.mkdir(parents=True, exist_ok=True)
        (path / "package.json").write_text('{"name": "servers"}')
        install = ["npm", "install", "--no-audit", "--no-fund", "@copilotkit/aimock@1.43.0"]
        subprocess.run(install, cwd=path, check=True)
        (path / ".installed").touch()
    calls = {"name": "now", "arguments": {}}
    fixtures: list[dict[str, Any]] = [
        {"match": {"hasToolResult": False, "toolName": "now"}, "response": {"toolCalls": [calls]}},
        {"match": {}, "response": {"content": "One two three four five six seven eight nine ten."}},
    ]
    (directory / "fixtures.json").write_text(json.dumps({"fixtures": fixtures}))
    port = free_port()
    arguments = ("--port", port, "--fixtures", directory / "fixtures.json")
    with program(
        path / "node_modules" / ".bin" / "llmock", *arguments, port=port, directory=directory
    ) as url:
        yield Place(url=url, model="gpt-4o", apis=("chat", "responses", "messages"))


@contextmanager
def fakellm(directory: Path) -> Iterator[Place]:
    programs = environment("fakellm", "fakellm==0.3.5")
    rules: list[dict[str, Any]] = [
        {
            "name": "calls",
            "when": {"messages_contain": "call a tool", "turn": 1},
            "respond": {"tool_calls": [{"name": "now", "arguments": {}}]},
        }
    ]
    config = {"version": 1, "defaults": {"fallback": "deterministic_echo"}, "rules": rules}
    (directory / "fakellm.yaml").write_text(json.dumps(config))
    port = free_port()
    command = (programs / "fakellm", "serve", "--port", port)
    with program(*command, port=port, directory=directory) as url:
        yield Place(url=url, model="gpt-4o", apis=("chat", "messages"))


SERVERS = {"llama.cpp": llama_cpp, "litellm": litellm, "aimock": aimock, "fakellm": fakellm}


# ------------------------------------------------------------------------------
# The conversation


def settings(place: Place, directory: Path) -> dict[str, object]:
    key_file = directory / "key"
    key_file.touch(0o600)
    key_file.write_text(place.key)

    def provider(id_: str) -> dict[str, object]:
        named = {"id": id_, "models": [place.model], "api_key_file": str(key_file)}
        if id_ == "messages":
            return {**named, "type": "anthropic", "base_url": place.url}
        kind = "mistral" if id_ == "mistral" else "openai"
        api = "responses" if id_ == "responses" else "chat"
        return {**named, "type": kind, "api": api, "base_url": f"{place.url}/v1"}

    facts = {"context_tokens": WINDOW_TOKENS, "images": True}
    return {
        "providers": [
            {"id": "offline", "type": "offline", "words_per_second": 0},
            *map(provider, place.providers),
        ],
        "models": {
            f"{id_}/{place.model}": {**facts, "tools": id_ != "without_tools"}
            for id_ in place.providers
        },
        "tools": {"*": "allow"},
        "discover": False,
        "limits": {"prompts_per_minute_max": 100_000},
    }


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TEXTS = (
    "hello",
    "What do you see? 漢字, naïve, 👋🏽\u200d",
    "one word " * 60,
    "please call a tool",
    "x",
)


class Kind(Struct, frozen=True):
    """A kind of turn: what its prompt has besides a text."""

    fields: dict[str, Any] = {}
    model: str | None = None
    text: str | None = None
    file: str | None = None
    is_cancelled: bool = False


CUT = Kind({"options": {"output_tokens": 9}})
CONTINUED = Kind({"continues": True}, text="")
OPTIONS = {"effort": "high", "temperature": 0.3, "top_p": 0.9}
KINDS = (
    *(Kind(),) * 6,
    *(CUT, CUT, CONTINUED),
    *(Kind(file="picture"), Kind(file="pdf"), Kind(is_cancelled=True)),
    *(Kind({"options": {"schema": SCHEMA}}), Kind({"options": OPTIONS})),
    *(Kind({"options": {"deny_tools": ["*"]}}), Kind({"options": {"use_history": False}})),
    *(Kind(model="offline/echo"), Kind(model="offline/echo", text="!tool now {}")),
)


class Talk:
    """One conversation, turn by turn."""

    def __init__(self, client: nplt_client.Client, place: Place, files: dict[str, str]) -> None:
        self._client = client
        self._models = [f"{id_}/{place.model}" for id_ in place.providers]
        self._files = files
        self._random = random.Random(20)
        self._is_cut = False
        self.ends: Counter[str] = Counter()
        self.failures: list[str] = []

    async def turn(self) -> None:
        kind = CONTINUED if self._is_cut else self._random.choice(KINDS)
        model = kind.model or self._random.choice(self._models)
        text = self._random.choice(TEXTS) if kind.text is None else kind.text
        files = () if kind.file is None else (self._files[kind.file],)
        try:
            with anyio.fail_after(SECONDS_MAX):
                async with self._client.ask(
                    text, model=model, attachments=files, **kind.fields
                ) as turn:
                    if kind.is_cancelled:
                        await turn.cancel()
                    events = [event async for event in turn]
        except nplt_client.NpltError as refused:
            state, stop = "", None
            error: dict[str, Any] = {"code": refused.code, "message": refused.message}
        else:
            finished = events[-1]
            assert isinstance(finished, nplt_client.TurnFinished)
            state, stop = finished.state, finished.stop_reason
            error = dict(finished.error or {})
        self._is_cut = stop == "length"
        code = str(error.get("code", state)) if state != "interrupted" else state
        if code == "provider_refused" and "vendor" not in error:
            code = "no answer"  # the server took the request
        self.ends[code] += 1
        if code not in (*_EXPECTED, "completed", "interrupted"):
            self.failures.append(f"{model}, {kind.fields or kind.file or text[:20]}: {error}")


async def converse(name: str, place: Place, directory: Path, turns: int) -> bool:
    server = ServerProcess(directory / "data", settings=settings(place, directory)).start()
    try:
        async with nplt_client.connect(f"nplt://127.0.0.1:{server.port}") as client:
            await client.new(name)
            seen = await client.upload(picture(directory / "red.png"))
            read = await client.upload(pdf("A page."), filename="a.pdf")
            talk = Talk(client, place, {"picture": seen.file_id, "pdf": read.file_id})
            for _ in range(turns):
                await talk.turn()
            learned = (await client.models()).learned
    finally:
        server.terminate()
    records = (path.read_text() for path in (directory / "data" / "history").glob("*.json"))
    hidden = sum(record.count('"kind":"quarantine"') for record in records)
    print(f"{name}: {dict(talk.ends)}; hidden: {hidden}; learned: {json.dumps(learned)}")
    for failure in talk.failures:
        print(f"  {failure}")
    return not talk.failures and not hidden


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real_servers")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SERVERS))
    parser.add_argument("--turns", type=int, default=200)
    chosen = parser.parse_args()
    good = []
    for name in chosen.names or SERVERS:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="servers-")))
            place = stack.enter_context(SERVERS[name](directory))
            good.append(anyio.run(converse, name, place, directory, chosen.turns))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
