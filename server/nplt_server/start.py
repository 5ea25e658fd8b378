"""Starts a server: settings, data directory, sockets; then everything else.

The server listens before it has loaded what conversations need, which takes longer than
all before it: clients connect meanwhile and wait in the socket's backlog. What can be
wrong with the settings is found before it listens; where they name code or programs of the
operator's, these are loaded first.

SIGTERM and SIGINT stop it: running turns get their time, and a second signal hurries. A
process that does not end all the same is ended by a thread of its own.

`Workers` runs several servers behind one port, over one Redis: a process that serves nothing
itself forks them, starts one again that died, and passes signals on.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import ipaddress
import json
import logging
import os
import resource
import secrets
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from msgspec import Struct

from nplt_server import __version__
from nplt_server.errors import EXIT_CONFIGURATION, CannotServe, ConfigurationError
from nplt_server.histories import open_histories, utc_now
from nplt_server.settings import ExtensionSettings, PythonSettings, Settings, user_dir

if TYPE_CHECKING:  # slow to load: the server listens before it is imported
    from nplt_server.app import Server

log = logging.getLogger(__name__)

_BACKLOG = 1_024
_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
_LAST_RESORT_SECONDS = 6.5
"""After the time turns are given to end, the process is ended whatever still runs (a function
that blocks, a child that won't go): everything acknowledged is on disk."""

Announce = Callable[[str, int], None]
"""Called with host and port when clients can connect."""


_SWITCH_SECONDS: Final = 0.001
"""How long a thread that computes may keep the interpreter while the event loop wants it."""


async def serve(
    settings: Settings,
    announce: Announce,
    ready: Callable[[Server], None] = lambda server: None,
    *,
    any_port: bool = False,
    as_worker: Worker | None = None,
) -> None:
    """Runs a server from start to stop. `ready` is called once the server can be stopped."""
    with suppress(ValueError, OSError):  # a thousand connections need more than is usual
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sys.setswitchinterval(_SWITCH_SECONDS)
    if not settings.is_private:
        log.warning(
            "listening on %s without tokens and TLS: whoever reaches the port can read and "
            "write every conversation, and spend your keys",
            settings.listen.host,
        )
    tls = _load_tls(settings)
    if (
        settings.extensions != ExtensionSettings.model_construct()
        or settings.mcp_servers
        or settings.tools
        or any(isinstance(provider, PythonSettings) for provider in settings.providers)
    ):  # these may have mistakes that turn up only when the parts are built
        from nplt_server.app import build_parts

        build_parts(settings)
    host, port, is_worker = settings.listen.host, settings.listen.port, as_worker is not None
    histories = await open_histories(settings, utc_now)
    try:
        with ExitStack() as left_over:
            sockets = await bind(host, port, any_port=any_port, share_port=is_worker)
            sockets += as_worker.sockets if as_worker is not None else []
            for sock in sockets:
                left_over.enter_context(sock)
            sockets += _bind_unix(settings, left_over)
            host, port = sockets[0].getsockname()[:2]
            announce(str(host), int(port))
            from nplt_server import app

            is_alone = as_worker is None or as_worker.is_alone
            await app.serve(settings, histories, sockets, tls, ready, ends_copies=is_alone)
    finally:
        with anyio.CancelScope(shield=True):
            await histories.close()


def run(
    settings: Settings,
    announce: Announce,
    *,
    any_port: bool = False,
    as_worker: Worker | None = None,
) -> None:
    """Serves until it is signalled, in an event loop of its own."""
    serving = partial(_run_until_signalled, settings, announce, any_port, as_worker)
    anyio.run(serving, backend_options={"use_uvloop": find_spec("uvloop") is not None})


async def _run_until_signalled(
    settings: Settings, announce: Announce, any_port: bool, as_worker: Worker | None
) -> None:
    """SIGTERM or SIGINT drains; a second one hurries."""
    runtime_file = RuntimeFile()
    loop = asyncio.get_running_loop()
    running: list[Server] = []
    signals: list[int] = []

    def obey(number: int, _: object) -> None:
        # In the signal handler, because the event loop may be what hangs.
        if not signals:
            seconds = settings.limits.drain_seconds_max + _LAST_RESORT_SECONDS
            threading.Thread(target=_end_for_certain, args=(seconds,), daemon=True).start()
        signals.append(number)
        loop.call_soon_threadsafe(stop)

    def stop() -> None:
        for server in running:
            server.stop()

    def ready(server: Server) -> None:
        gc.freeze()  # the modules, which are all loaded by now
        gc.enable()
        running.append(server)
        for _ in signals:
            server.stop()

    def listening(host: str, port: int) -> None:
        if as_worker is None:
            runtime_file.write(settings, host, port)
        announce(host, port)

    def parent_has_gone(descriptor: int) -> None:
        loop.remove_reader(descriptor)
        log.warning("the process that started this worker is gone: shutting down")
        obey(signal.SIGTERM, None)

    for number in _STOPPING:
        signal.signal(number, obey)
    if as_worker is not None:
        loop.add_reader(as_worker.parent, parent_has_gone, as_worker.parent)
    try:
        await serve(settings, listening, ready, any_port=any_port, as_worker=as_worker)
    finally:
        runtime_file.remove()


def _end_for_certain(seconds: float) -> None:
    time.sleep(seconds)
    log.critical("something would not end; what was acknowledged is on disk: leaving it")
    os._exit(1)


_LOCK_SECONDS_MAX = 0.1
"""A client that looks whether a server lives holds the lock for a moment."""


class RuntimeFile:
    """Says where the server listens, for `nplt` of the same user: `server.json` in the user's
    state folder (`~/.local/state/nplt`), readable by that user alone. The server holds a lock
    on it as long as it lives, so that a file left behind by a killed server is told from a
    living one's. Where two servers of one user run, the first keeps the file."""

    def __init__(self) -> None:
        self._path = user_dir("state") / "server.json"
        self._descriptor: int | None = None

    def write(self, settings: Settings, host: str, port: int) -> None:
        """A server that can't write it serves all the same: clients can name its address."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            log.warning("%s can't be written: %s", self._path, error.strerror)
            return
        give_up = time.monotonic() + _LOCK_SECONDS_MAX
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LOCK_SECONDS_MAX / 20)
            if time.monotonic() > give_up:
                os.close(descriptor)
                log.info("another server of yours is in %s: nplt goes there", self._path)
                return
        self._descriptor = descriptor
        # An address that can be connected to, also when the server listens on all there are.
        address = ipaddress.ip_address(host.partition("%")[0])
        if address.is_unspecified:
            host = "127.0.0.1" if address.version == 4 else "::1"
        place = f"[{host}]" if ":" in host else host
        described = {
            "url": f"{'nplts' if settings.listen.tls else 'nplt'}://{place}:{port}",
            "unix": str(settings.listen.unix) if settings.listen.unix else None,
            "pid": os.getpid(),
            "version": __version__,
            "data_dir": str(settings.data_dir),
        }
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(described).encode() + b"\n", 0)

    def remove(self) -> None:
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


async def bind(
    host: str, port: int, *, any_port: bool = False, share_port: bool = False, listen: bool = True
) -> list[socket.socket]:
    """Sockets on every address the name has; with port 0 they share the first one's.
    With `any_port` a port that is taken is replaced by a free one; with `share_port` other
    processes may bind the same one likewise."""
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    try:
        # As bytes: a name in ASCII needs no codec, which would be loaded for it.
        name = host.encode() if host.isascii() else host
        found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            sock = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if share_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = port or (sockets[0].getsockname()[1] if len(sockets) > 1 else 0)
            sock.bind((address[0], chosen, *address[2:]))
            if listen:
                sock.listen(_BACKLOG)
    except OSError as error:
        for sock in sockets:
            sock.close()
        if any_port and port and error.errno == errno.EADDRINUSE:
            log.warning("port %d is taken; listening on another one", port)
            return await bind(host, 0)
        hint = ""
        if error.errno == errno.EADDRINUSE:
            hint = "; stop what listens there, or choose another port with --port"
        raise CannotServe(f"can't listen on {host}:{port}: {error.strerror}{hint}") from None
    return sockets


def _bind_unix(settings: Settings, left_over: ExitStack) -> list[socket.socket]:
    """The Unix socket, if one is wanted; `left_over` closes and removes it. The data directory
    has one server, so a socket that nobody answers at is left over."""
    path = settings.listen.unix
    if path is None:
        return []
    sock = left_over.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        sock.setblocking(False)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                nobody_answers = probe.connect_ex(str(path)) != 0
            if nobody_answers:
                path.unlink()
        before = os.umask(0o177 if settings.local_users == "owner" else 0o111)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        sock.listen(_BACKLOG)
    except OSError as error:
        raise CannotServe(f"can't listen on {path}: {error.strerror or error}") from None
    left_over.callback(path.unlink, missing_ok=True)
    return [sock]


def _load_tls(settings: Settings) -> ssl.SSLContext | None:
    tls = settings.listen.tls
    if tls is None:
        return None
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(str(tls.cert), str(tls.key))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError([f"listen.tls: can't load the certificate: {error}"]) from None
    return context


# ------------------------------------------------------------------------------
# Several servers behind one port
#
# Each worker binds the port for itself (SO_REUSEPORT), and the kernel spreads connections
# over them. Each also listens at an address of its own, which it advertises to the others, so
# that they relay to it: a port of the loopback interface, or, if the settings advertise
# host:port, the n-th port after that one. A secret for the relay is made if there is none.
# Workers see by a pipe that their parent is gone, and stop.

_AGAIN_SECONDS: Final = 1.0
"""A worker that dies sooner than this after its start is not started again at once."""


class Worker(Struct, frozen=True, kw_only=True):
    """What one of several servers gets from the process that starts them."""

    sockets: list[socket.socket]
    """That it listens at besides the port they share."""
    parent: int
    """A descriptor that can be read once the parent is gone."""
    is_alone: bool
    """No other runs yet, which might be copying attachments."""


class Workers:
    """Starts that many servers, and sees to it that there are that many."""

    def __init__(self, settings: Settings, count: int) -> None:
        self._settings = settings
        self._count = count
        self._running: dict[int, tuple[int, float]] = {}
        """The number of each worker and when it was started, by process id."""
        self._shared: list[socket.socket] = []
        self._unix: list[socket.socket] = []
        self._signals: list[int] = []
        self._alive = os.pipe()

    def run(self, announce: Announce, *, any_port: bool = False) -> int:
        """Returns the exit code once all have ended: 0 if they were told to."""
        with ExitStack() as left_over:
            host, port = asyncio.run(self._bind(left_over, any_port=any_port))
            if self._settings.cluster.secret_file is None:
                self._make_secret(left_over)
            import nplt_server.app  # noqa: F401  once, for all of them

            runtime_file = RuntimeFile()
            left_over.callback(runtime_file.remove)
            for each in _STOPPING:
                signal.signal(each, self._obey)
            for number in range(self._count):
                if code := self._start(number):
                    self._obey(signal.SIGTERM, None)
                    self._supervise()
                    return code
            if not self._signals:
                runtime_file.write(self._settings, host, port)
                announce(host, port)
            self._supervise()
        return 0

    async def _bind(self, left_over: ExitStack, *, any_port: bool) -> tuple[str, int]:
        """Keeps the port, also while no worker listens there."""
        listen = self._settings.listen
        tried = await bind(listen.host, listen.port, any_port=any_port, listen=False)
        host, port = tried[0].getsockname()[:2]
        for sock in tried:
            sock.close()  # it was free: nobody shares it but those that are started here
        self._shared = await bind(listen.host, port, share_port=True, listen=False)
        for sock in self._shared:
            left_over.enter_context(sock)
        self._unix = _bind_unix(self._settings, left_over)
        listen = listen.model_copy(update={"port": port})
        self._settings = self._settings.model_copy(update={"listen": listen})
        return str(host), int(port)

    def _make_secret(self, left_over: ExitStack) -> None:
        from tempfile import NamedTemporaryFile  # one server alone starts without it

        made = NamedTemporaryFile(prefix="nplt-")  # noqa: SIM115  as long as there are workers
        file = left_over.enter_context(made)
        file.write(secrets.token_urlsafe(32).encode())
        file.flush()
        cluster = self._settings.cluster.model_copy(update={"secret_file": Path(file.name)})
        self._settings = self._settings.model_copy(update={"cluster": cluster})

    def _start(self, number: int) -> int:
        """Returns when it listens: 0; or its exit code, if it ended instead."""
        said, says = os.pipe()
        # Until the parent has noted the pid, and the child has set its own handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
        pid = os.fork()
        if pid == 0:
            os.close(said)
            self._live(number, says)
        os.close(says)
        self._running[pid] = (number, time.monotonic())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        is_listening = bool(os.read(said, 1))
        os.close(said)
        if is_listening or self._signals:
            return 0
        del self._running[pid]
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) or 1

    def _live(self, number: int, says: int) -> None:
        code = 1
        try:
            for each in _STOPPING:
                signal.signal(each, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
            os.setpgid(0, 0)  # what a terminal signals comes through the parent
            os.close(self._alive[1])
            for sock in self._shared:
                sock.close()

            def tell_parent(_host: str, _port: int) -> None:
                os.write(says, b"1")
                os.close(says)

            worker, settings = self._worker(number)
            run(settings, tell_parent, as_worker=worker)
            code = 0
        except ConfigurationError as error:
            for mistake in error.mistakes:
                log.error("%s", mistake)
            code = EXIT_CONFIGURATION
        except CannotServe as error:
            log.error("%s", error)
        except BaseException:
            log.exception("worker %d failed", number)
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _worker(self, number: int) -> tuple[Worker, Settings]:
        advertised, _, its_port = (self._settings.cluster.advertise or "").rpartition(":")
        host, port = "127.0.0.1", 0
        if its_port:
            host, port = self._settings.listen.host, int(its_port) + 1 + number
        try:
            own = socket.create_server((host, port), backlog=_BACKLOG)
        except OSError as error:
            raise CannotServe(f"can't listen on {host}:{port}: {error.strerror}") from None
        own.setblocking(False)
        advertise = f"{advertised or host}:{own.getsockname()[1]}"
        cluster = self._settings.cluster.model_copy(update={"advertise": advertise})
        listen = self._settings.listen.model_copy(update={"unix": None})
        settings = self._settings.model_copy(update={"cluster": cluster, "listen": listen})
        is_alone, parent = not self._running, self._alive[0]
        return Worker(sockets=[own, *self._unix], parent=parent, is_alone=is_alone), settings

    def _supervise(self) -> None:
        """Returns when all have ended, which they do once they were told to."""
        while self._running:
            pid, status = os.waitpid(-1, 0)
            number, started_at = self._running.pop(pid, (-1, 0.0))
            if number < 0 or self._signals:
                continue
            code = os.waitstatus_to_exitcode(status)
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            log.warning("worker %d (process %d) ended (%s); starting it again", number, pid, how)
            if time.monotonic() - started_at < _AGAIN_SECONDS:
                time.sleep(_AGAIN_SECONDS)
            while not self._signals and self._start(number):
                log.error("worker %d does not start; trying again", number)
                time.sleep(_AGAIN_SECONDS)

    def _obey(self, number: int, _: object) -> None:
        self._signals.append(number)
        for pid in list(self._running):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def why_no_workers(settings: Settings) -> str | None:
    """What several servers on this machine lack, as a sentence."""
    alone = [each.id for each in settings.histories if each.backend.type in ("json", "memory")]
    if alone:
        return (
            f"--workers needs conversations in a Redis that all workers share, and history "
            f"{alone[0]!r} is not; its backend would be {{type: redis, url: redis://…}}"
        )
    cluster = settings.cluster
    if settings.listen.tls is not None and cluster.advertise is None:
        return (
            "--workers with listen.tls needs cluster.advertise and cluster.secret_file: workers "
            "reach each other by a host that the certificate is for"
        )
    if cluster.advertise is not None and cluster.secret_file is None:
        return (
            "--workers with cluster.advertise needs cluster.secret_file: servers that advertise "
            "themselves relay to each other"
        )
    return None
