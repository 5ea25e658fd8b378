"""A class with the memo's three methods, named in the settings of a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.raw_client import HISTORY_REQUEST, SESSION_SWITCH, RawClient
from tests.support.server_process import clean_environment

BACKEND = """
import json
from pathlib import Path


class FolderBackend:
    def __init__(self, config):
        self.folder = Path(config["folder"])

    async def get_history(self, session_id):
        path = self.folder / session_id
        return json.loads(path.read_text()) if path.exists() else []

    async def append_message(self, session_id, role, content):
        messages = await self.get_history(session_id)
        messages.append({"role": role, "content": content})
        (self.folder / session_id).write_text(json.dumps(messages))

    async def clear_history(self, session_id):
        (self.folder / session_id).unlink(missing_ok=True)


class Half:
    async def get_history(self, session_id):
        return []
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own_backend.py").write_text(BACKEND)
    kept = tmp_path / "kept"
    kept.mkdir()
    return kept


def run_check(tmp_path: Path, class_name: str) -> subprocess.CompletedProcess[str]:
    settings = {"histories": [{"id": "own", "backend": {"type": f"own_backend:{class_name}"}}]}
    (tmp_path / "server.yaml").write_text(json.dumps(settings))
    command = ["-m", "nplt_server", "--config", str(tmp_path / "server.yaml"), "--check"]
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        env={**clean_environment(), "PYTHONPATH": str(tmp_path)},
        timeout=60,
        check=False,
    )


@contextmanager
def serving(tmp_path: Path, folder: Path) -> Iterator[int]:
    """Gives its port. A process of its own, for it imports from another path."""
    backend = {"type": "own_backend:FolderBackend", "folder": str(folder)}
    settings = {
        "histories": [{"id": "own", "backend": backend}],
        "providers": [{"id": "offline", "type": "offline", "words_per_second": 0}],
    }
    (tmp_path / "server.yaml").write_text(json.dumps(settings))
    command = ["-m", "nplt_server", "--config", str(tmp_path / "server.yaml"), "--port", "0"]
    with subprocess.Popen(
        [sys.executable, *command, "--data-dir", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        text=True,
        env={**clean_environment(), "PYTHONPATH": str(tmp_path)},
    ) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline().rpartition(":")[2])
        finally:
            server.terminate()
            server.wait(60)


@pytest.mark.slow
def test_conversations_in_a_custom_store_continue_after_a_restart(
    folder: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, folder) as port, RawClient(port) as client:
        session_id = client.hello()["session_id"]
        assert client.ask("one") == "one"
        kept = json.loads((folder / session_id).read_text())
        assert [message["content"] for message in kept] == ["one", "one"]
    with serving(tmp_path, folder) as port, RawClient(port) as client:
        client.hello()
        client.request(SESSION_SWITCH, {"session_id": session_id})
        assert client.ask("two") == "two"
        page = client.request(HISTORY_REQUEST, {"limit": 10}).json
        assert [message["content"] for message in page["messages"]] == ["one", "one", "two", "two"]


def test_ids_of_users_work_with_a_custom_store(folder: Path, tmp_path: Path) -> None:
    for text in ("My name is Alice", "What is my name?"):
        with serving(tmp_path, folder) as port, RawClient(port) as client:
            client.hello({"session_id": "user_123", "create": True})
            assert client.ask(text) == text
            page = client.request(HISTORY_REQUEST, {"session_id": "user_123"}).json
    contents = [message["content"] for message in page["messages"] if message["role"] == "user"]
    assert contents == ["My name is Alice", "What is my name?"]
    assert [path.name for path in folder.iterdir()] == ["user_123"]


def test_check_names_the_methods_a_custom_store_lacks(folder: Path, tmp_path: Path) -> None:
    assert run_check(tmp_path, "FolderBackend").returncode == 0
    half = run_check(tmp_path, "Half")
    assert half.returncode == 78
    assert "lacks append_message and clear_history" in half.stderr
