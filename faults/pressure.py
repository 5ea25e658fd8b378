"""HEAVY, QUOTA, FRAGMENTS, FLOOD-TLS: one user or a stranger asks for too much.

HEAVY: a user asks for contexts of a long conversation over twenty connections; another user's turn
of one word must not wait for them. QUOTA: a user uploads, forks and begins uploads without end; the
disk keeps its reserve, and another user is served. FRAGMENTS: a thousand connections begin long
messages and never finish them; memory is bounded, and freed when they close. FLOOD-TLS: strangers
take all places of a TLS port, some silent before the handshake, some with a wrong token; a client
with a token gets in.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import statistics
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from benchmarks.long_work import write_long_conversation
from tests.support.raw_client import (
    CONTEXT_REQUEST,
    ERROR,
    FILE_DATA,
    FILE_METADATA,
    HEADER,
    HELLO,
    PROMPT,
    SESSION_FORK,
    Closed,
    Frame,
    RawClient,
    encode,
)

from faults.plan import Plan
from faults.progress import Progress
from faults.results import CannotBeDone, Promised, Result
from faults.serving import PATIENCE_SECONDS, ServerProgram, log_path

TOKENS = {"ada": "ada's token", "bob": "bob's token"}
USERS = [
    {"name": name, "token_sha256": hashlib.sha256(token.encode()).hexdigest()}
    for name, token in TOKENS.items()
]
_MIB = 2**20


def _server(plan: Plan, name: str, **settings: object) -> ServerProgram:
    whole = {
        "providers": [{"id": "offline", "type": "offline", "words_per_second": 0}],
        "users": USERS,
        "log_level": "warning",
        **settings,
    }
    return ServerProgram(plan.new_path(name) / "data", settings=whole)


def _client(stack: ExitStack, port: int, user: str | None = None) -> RawClient:
    client = stack.enter_context(RawClient(port, timeout=PATIENCE_SECONDS))
    client.hello({"token": TOKENS[user]} if user else b"")
    return client


def _turn_seconds(client: RawClient) -> float:
    begun = time.monotonic()
    if client.ask("word") != "word":
        raise ValueError("the answer is another one")
    return time.monotonic() - begun


def _memory(server: ServerProgram) -> int:
    book = Path(f"/proc/{server.pid}/smaps_rollup").read_text()
    line = next(line for line in book.splitlines() if line.startswith("Rss:"))
    return int(line.split()[1]) * 1024


# HEAVY


_ASKING = 20
_WAITING_MAX = 0.25
"""A share of the time that a context takes. A turn that waits for a context takes longer than this.
"""


def heavy(plan: Plan) -> list[Result]:
    entries, turns = (20_000, 5) if plan.quick else (100_000, 30)
    limits = {"prompts_per_minute_max": 100_000, "frames_per_second_max": 100_000}
    model = {"offline/echo": {"context_tokens": 4_000_000}}
    server = _server(plan, "heavy", limits=limits, models=model)
    write_long_conversation(server.data_dir, "long", entries, user="ada")
    complaints: list[str] = []
    with server, ExitStack() as stack:
        server.start()
        asking = [_client(stack, server.port, "ada") for _ in range(_ASKING)]
        for client in asking:
            client.sock.settimeout(10 * PATIENCE_SECONDS)  # each context waits for all the others
        bob = _client(stack, server.port, "ada" if plan.sabotage else "bob")
        if plan.sabotage:  # as if both used the same conversation: the turn waits for the contexts
            bob.request(0x08, {"session_id": "long"})
        alone = statistics.median(_turn_seconds(bob) for _ in range(turns))
        _context(asking[0])
        begun = time.monotonic()
        _context(asking[0])
        context = time.monotonic() - begun
        replied = [0] * _ASKING
        is_over = threading.Event()
        threads = [
            threading.Thread(target=_ask_on, args=(client, replied, place, is_over))
            for place, client in enumerate(asking)
        ]
        for thread in threads:
            thread.start()
        progress = Progress("HEAVY turns", turns)
        waits: list[float] = []
        try:
            while len(waits) < turns or (not sum(replied) and sum(waits) < PATIENCE_SECONDS):
                waits.append(_turn_seconds(bob))
                progress.step()
        except TimeoutError:
            waits.append(PATIENCE_SECONDS)
            complaints.append(f"a turn was not answered within {PATIENCE_SECONDS:g} s")
        is_over.set()
        for client in asking:
            client.sock.close()
        for thread in threads:
            thread.join()
        progress.end()
    typical = statistics.median(waits)
    longest = max(10 * alone, _WAITING_MAX * context * _ASKING)
    if typical > longest:
        complaints.append(f"a turn took {typical:.2f} s, at most {longest:.2f} s were expected")
    if not sum(replied):
        complaints.append("no context was answered: there was no load")
    today = (
        f"{_ASKING} connections, {sum(replied)} contexts of {entries:,} entries "
        f"({context * 1e3:.0f} ms each): another user's turn {alone * 1e3:.0f} ms alone, "
        f"{typical * 1e3:.0f} ms then, at most {max(waits) * 1e3:.0f} ms"
    )
    return [Promised(number="HEAVY", what="one user's long requests").judged(complaints, today)]


def _context(client: RawClient) -> None:
    reply = client.request(CONTEXT_REQUEST, {"session_id": "long"})
    if reply.type == ERROR:
        raise ValueError(reply.text)


def _ask_on(client: RawClient, replied: list[int], place: int, is_over: threading.Event) -> None:
    with suppress(OSError, Closed):
        while not is_over.is_set():
            _context(client)
            replied[place] += 1


# QUOTA


_FILE_BYTES = 200_000
_QUOTA_BYTES = 2_000_000


def quota(plan: Plan) -> list[Result]:
    tries = 30 if plan.quick else 200
    limits = {
        "file_bytes_per_user_max": _QUOTA_BYTES,
        "conversation_bytes_per_user_max": _QUOTA_BYTES,
        "upload_bytes_per_user_max": _QUOTA_BYTES,
        "prompts_per_minute_max": 100_000,
        "frames_per_second_max": 100_000,
    }
    refused: dict[str, int] = {}
    complaints: list[str] = []
    server = _server(plan, "quota", limits=limits)
    with server, ExitStack() as stack:
        server.start()
        ada, bob = _client(stack, server.port, "ada"), _client(stack, server.port, "bob")
        ada.ask("x" * 20_000)
        for number in range(tries):
            for frame in (_uploaded(ada), ada.request(SESSION_FORK)):
                if frame.type == ERROR:
                    refused[frame.json["code"]] = refused.get(frame.json["code"], 0) + 1
            if not number % 10:
                bob.ask("still there?")
        others = [_client(stack, server.port, "ada") for _ in range(20)]
        for client in others:
            client.send(FILE_METADATA, 9, {"filename": "f", "size": _FILE_BYTES})
            client.send(FILE_DATA, 9, bytes(_FILE_BYTES // 2))
        if _uploaded(bob).type == ERROR:
            complaints.append("the other user can't upload")
        bob.ask("and now?")
        kept = _bytes_below(server.data_dir)
    most = 1_000 if plan.sabotage else 3 * _QUOTA_BYTES + 2 * _MIB  # and the index
    if kept > most:
        complaints.append(f"{kept:,} bytes are on the disk, at most {most:,} were expected")
    if not refused.get("too_large"):
        complaints.append("nothing was refused")
    today = f"{tries} uploads and {tries} forks: refused {refused}, {kept:,} bytes on the disk"
    return [Promised(number="QUOTA", what="uploads and forks").judged(complaints, today)]


def _uploaded(client: RawClient) -> Frame:
    client.next_seq += 1
    seq = client.next_seq
    client.send(FILE_METADATA, seq, {"filename": "f", "size": _FILE_BYTES})
    for start in range(0, _FILE_BYTES, 50_000):
        client.send(FILE_DATA, seq, bytes(min(50_000, _FILE_BYTES - start)))
    return client.reply_to(seq)


def _bytes_below(directory: Path) -> int:
    """The bytes of all files; those that forks share count once."""
    found = (path.stat() for path in directory.rglob("*") if path.is_file())
    return sum({about.st_ino: about.st_size for about in found}.values())


# FRAGMENTS


_LEFT_BYTES_MAX = 50 * _MIB
_HELD_BYTES_MAX = 200 * _MIB


def fragments(plan: Plan) -> list[Result]:
    connections = 250 if plan.quick else 900
    complaints: list[str] = []
    settings = {"users": [], "limits": {"message_seconds_max": 600}}
    with _server(plan, "fragments", **settings) as server, ExitStack() as around:
        server.start()
        asking = _client(around, server.port)
        asking.ask("hello")
        before = _memory(server)
        progress = Progress("FRAGMENTS connections", connections)
        part = HEADER.pack(PROMPT | 0x80, 2, 65_535) + bytes(65_535)
        with ExitStack() as stack:
            for _ in range(connections):
                with suppress(OSError):
                    _client(stack, server.port).sock.sendall(part * 15)
                progress.step()
            seconds = _turn_seconds(asking)
            held = _memory(server) - before
        left = _least_memory(server, before) - before
        progress.end()
    for what, found, most in (
        ("while they were open", held, _HELD_BYTES_MAX),
        ("after they were closed", left, -_MIB if plan.sabotage else _LEFT_BYTES_MAX),
    ):
        if found > most:
            complaints.append(f"the server grew by {found / _MIB:.0f} MiB {what}")
    today = (
        f"{connections} connections with 983,025 bytes of an unfinished message each: memory "
        f"{held / _MIB:+.0f} MiB, after they were closed {left / _MIB:+.0f} MiB; a turn "
        f"meanwhile took {seconds * 1e3:.0f} ms"
    )
    return [Promised(number="FRAGMENTS", what="unfinished messages").judged(complaints, today)]


def _least_memory(server: ServerProgram, enough: int) -> int:
    """The least memory within a few seconds, because it is not freed at once."""
    least = _memory(server)
    until = time.monotonic() + 10
    while least > enough + _LEFT_BYTES_MAX // 2 and time.monotonic() < until:
        time.sleep(0.5)
        least = min(least, _memory(server))
    return least


# FLOOD-TLS


def flood_tls(plan: Plan) -> list[Result]:
    places, attempts = (100, 10) if plan.quick else (400, 60)
    home = plan.new_path("certificate")
    try:
        certificate = _certificate(home)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotBeDone(f"no certificate can be made: {error}") from None
    limits = {"connections_max": places, "hello_seconds_max": 60}
    listen = {"tls": {key: str(path) for key, path in certificate.items()}}
    trust = ssl.create_default_context(cafile=str(certificate["cert"]))
    trust.check_hostname = False
    complaints: list[str] = []
    served = 0
    with _server(plan, "flood", limits=limits, listen=listen) as server, ExitStack() as stack:
        server.start()
        progress = Progress("FLOOD-TLS attempts", attempts)
        flood = _Flood(server.port, trust, stack)
        for number in range(attempts):
            for _ in range(places // attempts + 1 if number else places + 10):
                flood.add()
            try:
                token = "guess" if plan.sabotage else TOKENS["ada"]
                served += _is_served(server.port, trust, token)
            except (OSError, Closed) as error:
                complaints.append(f"attempt {number + 1}: {type(error).__name__}: {error}")
            progress.step()
        progress.end()
        lines = log_path(server.data_dir).read_text().count("refused 127.0.0.1")
    if served < attempts:
        complaints.append(f"{attempts - served} of {attempts} were not served")
    today = (
        f"{flood.count} strangers at {places} places, half of them silent, half with a wrong "
        f"token: {served} of {attempts} honest clients served; {lines} lines in the log"
    )
    return [Promised(number="FLOOD-TLS", what="strangers at a TLS port").judged(complaints, today)]


class _Flood:
    def __init__(self, port: int, trust: ssl.SSLContext, stack: ExitStack) -> None:
        self._port = port
        self._trust = trust
        self._stack = stack
        self.count = 0

    def add(self) -> None:
        self.count += 1
        wire = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_SECONDS)
        self._stack.callback(wire.close)
        if self.count % 2:
            return
        with suppress(OSError):
            wire = self._trust.wrap_socket(wire)
            self._stack.callback(wire.close)
            wire.sendall(encode(HELLO, 1, {"token": "guess"}))


def _is_served(port: int, trust: ssl.SSLContext, token: str) -> bool:
    with RawClient(port, timeout=PATIENCE_SECONDS) as client:
        client.sock = trust.wrap_socket(client.sock)
        return bool(client.hello({"token": token}).get("user") == "ada")


def _certificate(home: Path) -> dict[str, Path]:
    cert, key = home / "cert.pem", home / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=nplt"]
    command += ["-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return {"cert": cert, "key": key}
