"""`python -m faults.upgrade [REVISION]`: an older version's data and clients, with this version.

    FILES     a data directory that the older server wrote is served by this one; clients of both
              versions stay attached while the server is replaced
    REDIS     two older servers over one Redis are replaced one after the other; clients of both
              versions stay attached to each

The older version is taken from git and runs with the packages of this one's .venv. Both answer
with `offline/echo`, so every answer is known. Exit code 0: everything acknowledged was there
afterwards, once, and every answer was delivered. What was tried is printed as a table.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from tests.support.ports import free_port
from tests.support.redis_server import RedisServer, find_redis_server

from faults.results import Promised, Result, table

OLDER = "c5a0a5e"
"""The version whose data and clients are tried, if none is named."""
ROOT = Path(__file__).parents[1]
PACKAGES = ("markdown", "protocol", "storage", "server", "gateway", "client")
_SECONDS_MAX = 60.0
_PROMPTS_BETWEEN = 20
"""The prompts that each client sends before the next server is replaced."""

_ATTACHED = """
import asyncio, json, sys, nplt_client

async def main(url, session, name):
    async with nplt_client.connect(url, session=session, create=True) as client:
        for number in range(1_000_000):
            text = f"{name} says {number}"
            answer = await client.ask_text(text)
            print(json.dumps({"sent": text, "answer": answer}), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass(frozen=True, kw_only=True)
class Version:
    name: str
    source: Path

    def run(self, *arguments: str, home: Path, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env=self._environment(home),
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS_MAX,
            **options,
        )

    def start(self, *arguments: str, home: Path, log: Path) -> subprocess.Popen[str]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, *arguments],
                env=self._environment(home),
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )

    def _environment(self, home: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NPLT_")}
        path = os.pathsep.join(str(self.source / package) for package in PACKAGES)
        return {**kept, "HOME": str(home), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


class Server:
    """One place of a server, which either version may take."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        folder.mkdir()
        self.port, self._folder = free_port(), folder
        offline = {"id": "offline", "type": "offline", "words_per_second": 0}
        settings = {"providers": [offline], "log_level": "warning", **settings}
        if "cluster" in settings:
            advertised = {"advertise": f"127.0.0.1:{self.port}"}
            settings["cluster"] = {**advertised, "secret_file": settings["cluster"]}
        (folder / "server.yaml").write_text(json.dumps(settings))  # JSON is YAML
        self._process: subprocess.Popen[str] | None = None

    @property
    def data_dir(self) -> Path:
        return self._folder / "data"

    @property
    def log(self) -> Path:
        return self._folder / "server.log"

    def start(self, version: Version) -> None:
        self._process = version.start(
            *("-m", "nplt_server", "--config", str(self._folder / "server.yaml")),
            *("--port", str(self.port), "--data-dir", str(self.data_dir)),
            home=self._folder,
            log=self.log,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("listening on "), self.log.read_text()

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            process.wait(_SECONDS_MAX)
            assert process.stdout is not None
            process.stdout.close()

    def replace(self, version: Version) -> None:
        self.stop()
        self.start(version)


@dataclass(kw_only=True)
class AttachedClient:
    """A client that prompts all the time, through every restart."""

    process: subprocess.Popen[str]
    session: str
    answered: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            self.answered.append(said["sent"])
            if said["answer"] != said["sent"]:
                self.wrong.append(f"{said['sent']!r} was answered with {said['answer']!r}")

    def wait_for_more(self) -> str | None:
        wanted, give_up = len(self.answered) + _PROMPTS_BETWEEN, time.monotonic() + _SECONDS_MAX
        while len(self.answered) < wanted:
            if time.monotonic() > give_up or self.process.poll() is not None:
                return f"a client of {self.session} stopped after {len(self.answered)} answers"
            time.sleep(0.05)
        return None


@contextmanager
def attached(
    versions: Sequence[Version], servers: Sequence[Server], folder: Path
) -> Iterator[list[AttachedClient]]:
    """A client of each version at each server; those of one version share a conversation."""
    clients = []
    for version in versions:
        for number, server in enumerate(servers):
            session = f"shared-by-{version.name}"
            name = f"{version.name} client {number}"
            process = version.start(
                *("-c", _ATTACHED, f"nplt://127.0.0.1:{server.port}", session, name),
                home=folder,
                log=folder / "clients.log",
            )
            clients.append(AttachedClient(process=process, session=session))
    readers = [Thread(target=client.read) for client in clients]
    for reader in readers:
        reader.start()
    try:
        yield clients
    finally:
        for client in clients:
            client.process.kill()
        for reader in readers:
            reader.join()
        for client in clients:
            client.process.wait()


def texts_of(version: Version, server: Server, session: str, home: Path) -> list[tuple[str, str]]:
    """Role and text of every message, oldest first, as a client of that version reads them."""
    messages: list[Any] = []
    before: list[str] = []
    while True:
        done = version.run(
            *("-m", "nplt_client", "history", session, "--limit", "200", "--json", *before),
            *("--server", f"nplt://127.0.0.1:{server.port}"),
            home=home,
        )
        page = json.loads(done.stdout)
        messages[:0] = page["messages"]
        if not page["page"]["has_more_before"]:
            return [(each["role"], each["content"]) for each in messages]
        before = ["--before", str(page["page"]["before"])]


def missing_and_doubled(
    version: Version, server: Server, clients: Sequence[AttachedClient], home: Path
) -> Iterator[str]:
    for session in {client.session for client in clients}:
        texts = texts_of(version, server, session, home)
        prompts = Counter(text for role, text in texts if role == "user")
        answers = Counter(text for role, text in texts if role == "assistant")
        for client in clients:
            yield from client.wrong
            for text in client.answered if client.session == session else ():
                if prompts[text] != 1 or answers[text] != 1:
                    yield f"{text!r} is there {prompts[text]} ×, its answer {answers[text]} ×"


def make_conversations(version: Version, server: Server, home: Path) -> list[str]:
    """Conversations of every kind that the older client's commands can make."""
    url = ("--server", f"nplt://127.0.0.1:{server.port}")

    def nplt(*arguments: str, **options: Any) -> str:
        return version.run("-m", "nplt_client", *arguments, *url, home=home, **options).stdout

    attachment = home / "notes.txt"
    attachment.write_text("notes\n" * 1_000)
    nplt("ask", "-s", "plain", "--create", "hello")
    nplt("ask", "-s", "plain", "and more, " + "word " * 2_000)
    nplt("ask", "-s", "tools", "--create", "!tool sys_monitor {}")
    nplt("ask", "-s", "thinking", "--create", "!think about it\nand answer")
    nplt("ask", "-s", "files", "--create", "-a", str(attachment), "look at this")
    nplt("ask", "-s", "to-fork", "--create", "one")
    nplt("fork", "to-fork", "--name", "forked")
    nplt("ask", "-s", "to-redact", "--create", "a secret word")
    nplt("redact", "to-redact", "2", "--yes")
    nplt("ask", "-s", "to-delete", "--create", "gone soon")
    nplt("delete", "to-delete")
    rows = json.loads(nplt("sessions", "--json"))
    return [str(row["session_id"]) for row in rows]


def files(older: Version, newer: Version, folder: Path) -> Result:
    promised = Promised(number="FILES", what=f"a data directory of {older.name}, same port")
    server = Server(folder / "files", {})
    complaints: list[str] = []
    server.start(older)
    try:
        ids = make_conversations(older, server, folder)
        before = {each: texts_of(older, server, each, folder) for each in ids}
        with attached((older, newer), (server,), folder) as clients:
            complaints += filter(None, [client.wait_for_more() for client in clients])
            server.replace(newer)
            complaints += filter(None, [client.wait_for_more() for client in clients])
        for reader in (newer, older):
            for each in ids:
                if texts_of(reader, server, each, folder) != before[each]:
                    complaints.append(f"{each} reads differently with a client of {reader.name}")
            complaints += missing_and_doubled(reader, server, clients, folder)
        for each in ids:
            url = f"nplt://127.0.0.1:{server.port}"
            arguments = ("-m", "nplt_client", "ask", "-s", each, "going on", "--server", url)
            answer = newer.run(*arguments, home=folder).stdout
            if answer.strip() != "going on":
                complaints.append(f"{each} can't be continued: {answer!r}")
    finally:
        server.stop()
    newer.run("-m", "nplt_server", "doctor", str(server.data_dir), home=folder)
    answered = sum(len(client.answered) for client in clients)
    figures = f"{len(ids)} conversations, {answered} answers to {len(clients)} attached clients"
    return promised.judged(complaints, figures)


def redis(older: Version, newer: Version, folder: Path) -> Result:
    promised = Promised(number="REDIS", what=f"two servers of {older.name}, replaced in turn")
    if find_redis_server() is None:
        return promised.skipped("there is no redis-server")
    secret = folder / "secret"
    secret.write_text("s" * 40)
    secret.chmod(0o600)
    storage = RedisServer(folder / "redis-server", appendfsync="always").start()
    backend = {"type": "redis", "url": storage.url, "key_prefix": "nplt:"}
    settings = {"histories": [{"id": "main", "backend": backend}], "cluster": str(secret)}
    servers = [Server(folder / f"redis-{number}", settings) for number in (1, 2)]
    complaints: list[str] = []
    with ExitStack() as running:
        running.callback(storage.stop)
        for server in servers:
            server.start(older)
            running.callback(server.stop)
        with attached((older, newer), servers, folder) as clients:
            complaints += filter(None, [client.wait_for_more() for client in clients])
            for number, server in enumerate(servers):
                server.replace(newer)
                complaints += filter(None, [client.wait_for_more() for client in clients])
                if number == 0:
                    complaints += both_at_once(older, newer, servers, folder)
        for reader in (newer, older):
            complaints += missing_and_doubled(reader, servers[0], clients, folder)
    answered = sum(len(client.answered) for client in clients)
    return promised.judged(complaints, f"{answered} answers to {len(clients)} attached clients")


def both_at_once(
    older: Version, newer: Version, servers: Sequence[Server], home: Path
) -> Iterator[str]:
    """While the first server is of the newer version and the second one is not: each lists what the
    other has written, and may go on with it."""
    new_server, old_server = servers

    def nplt(server: Server, *arguments: str) -> str:
        url = f"nplt://127.0.0.1:{server.port}"
        done = newer.run("-m", "nplt_client", *arguments, "--server", url, home=home)
        return done.stdout

    def ids_at(server: Server) -> set[str]:
        return {row["session_id"] for row in json.loads(nplt(server, "sessions", "--json"))}

    nplt(new_server, "ask", "-s", "made-by-newer", "--create", "hello")
    nplt(new_server, "ask", "-s", "made-by-newer", "--detach", "unread")
    nplt(new_server, "ask", "-s", "made-by-newer", "--in", "20s", "wake up")
    nplt(old_server, "ask", "-s", "made-by-older", "--create", "hello")
    for server, name in ((new_server, newer.name), (old_server, older.name)):
        missing = {"made-by-newer", "made-by-older"} - ids_at(server)
        if missing:
            yield f"a server of {name} does not list {sorted(missing)} while both run"
    new_server.stop()  # the older one takes over
    for name in ("made-by-newer", "made-by-older"):
        if nplt(old_server, "ask", "-s", name, "going on").strip() != "going on":
            yield f"a server of {older.name} can't go on with {name}"
    new_server.start(newer)
    give_up = time.monotonic() + _SECONDS_MAX
    texts: list[str] = []
    while texts.count("wake up") < 2 and time.monotonic() < give_up:
        time.sleep(1.0)
        messages = texts_of(newer, new_server, "made-by-newer", home)
        texts = [text for _, text in messages]
    if texts.count("wake up") != 2:
        yield f"a prompt for later was run {texts.count('wake up')} × with its answer"


def main() -> int:
    revision = sys.argv[1] if len(sys.argv) > 1 else OLDER
    with tempfile.TemporaryDirectory(prefix="nplt-upgrade-") as scratch:
        folder = Path(scratch)
        archive = subprocess.run(
            ["git", "archive", revision, "--", *_packages_of(revision)],
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(folder / "older", filter="data")
        older = Version(name=revision, source=folder / "older")
        newer = Version(name="this", source=ROOT)
        results = [files(older, newer, folder), redis(older, newer, folder)]
    print(table(results))
    return int(any(result.outcome == "BROKEN" for result in results))


def _packages_of(revision: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-tree", "--name-only", revision],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    return [package for package in PACKAGES if package in listed]


if __name__ == "__main__":
    sys.exit(main())
