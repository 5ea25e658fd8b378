"""Starts a server: checks the settings, opens the data directory and the sockets, runs the app.

The server listens before it imports the modules that conversations need, which is the slowest
part of the start; clients that connect meanwhile wait in the socket's backlog. Mistakes in the
settings are found before it listens; extensions and MCP servers that the settings name are
therefore loaded first.

SIGTERM and SIGINT stop the server gracefully: running turns get time to finish. A second signal
interrupts them. If the process still does not end, a watchdog thread ends it.

`Workers` runs several servers behind one port, over one Redis: a parent process, which serves
nothing itself, forks them, restarts those that die, and forwards signals.
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
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
from msgspec import Struct

from nplt_server import INSTANCE_ID, __version__
from nplt_server.errors import EXIT_CONFIGURATION, CannotServe, ConfigurationError
from nplt_server.heap import limit_heaps
from nplt_server.histories import open_histories, utc_now
from nplt_server.settings import ExtensionSettings, PythonSettings, Settings, user_dir
from nplt_server.systemd import inherited_sockets, keep_watchdog_quiet, notify
from nplt_server.tls import tls_context

if TYPE_CHECKING:  # slow to load: the server listens before it is imported
    from nplt_server.app import Server
    from nplt_server.settings_loader import SettingsSource

log = logging.getLogger(__name__)

_BACKLOG = 1_024
_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
_LAST_RESORT_SECONDS = 6.5
"""How long after the drain time the process is killed, even if something still runs (a function
that blocks, a child that does not exit). Everything acknowledged is on disk by then."""

Announce = Callable[[str, int, str | None], None]
"""A callback that gets host, port and the address for HTTP, if there is one, when clients can
connect."""


def place_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
    with suppress(ValueError, OSError):  # a thousand connections exceed the usual limit
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sys.setswitchinterval(_SWITCH_SECONDS)
    if not settings.is_private:
        log.warning(
            "listening on %s without tokens and TLS: whoever reaches the port can read and "
            "write every conversation, and spend your keys",
            settings.listen.host,
        )
    tls = tls_context(settings)
    if (
        settings.extensions != ExtensionSettings.model_construct()
        or settings.mcp_servers
        or settings.tools
        or any(isinstance(provider, PythonSettings) for provider in settings.providers)
    ):  # mistakes in these show only when the parts are built
        from nplt_server.app import build_parts

        build_parts(settings)
    host, port, is_worker = settings.listen.host, settings.listen.port, as_worker is not None
    histories = await open_histories(settings, utc_now)
    try:
        with ExitStack() as left_over:
            inherited = inherited_sockets(settings)
            sockets = inherited.nplt
            if not sockets:
                sockets = await bind(host, port, any_port=any_port, share_port=is_worker)
            sockets += as_worker.sockets if as_worker is not None else []
            for sock in sockets:
                left_over.enter_context(sock)
            sockets += _bind_unix(settings, left_over)
            http = inherited.http or await bind_http(settings, share_port=is_worker)
            for sock in http:
                left_over.enter_context(sock)
            scraped = await _bind_metrics(settings, share_port=is_worker)
            for sock in scraped:
                left_over.enter_context(sock)
            host, port = sockets[0].getsockname()[:2]
            http_url = _url_of(http, "https" if tls else "http")
            announce(str(host), int(port), http_url)
            from nplt_gateway.door import HttpDoor
            from nplt_server import app

            is_apart = bool(scraped)
            doors = [HttpDoor(http, http_url, has_metrics=not is_apart)] if http_url else []
            if is_apart:
                doors.append(HttpDoor(scraped, None, has_api=False))
            listening = app.Listening(sockets=sockets, tls=tls, doors=doors)
            is_alone = as_worker is None or as_worker.is_alone
            await app.serve(settings, histories, listening, ready, ends_copies=is_alone)
    finally:
        with anyio.CancelScope(shield=True):
            await histories.close()


def run(
    settings: Settings,
    announce: Announce,
    *,
    source: SettingsSource | None = None,
    any_port: bool = False,
    as_worker: Worker | None = None,
) -> None:
    """Serves until it is signalled, in an event loop of its own. SIGHUP loads the settings again
    from their source."""

    async def serve_until_signalled() -> None:
        served = _SignalledServer(settings, announce, source, as_worker)
        await served.run(any_port=any_port)

    limit_heaps()
    uses_uvloop = find_spec("uvloop") is not None
    anyio.run(serve_until_signalled, backend_options={"use_uvloop": uses_uvloop})


class _SignalledServer:
    """Serves until SIGTERM or SIGINT, then drains; a second one interrupts the turns. SIGHUP takes
    over changed settings."""

    def __init__(
        self,
        settings: Settings,
        announce: Announce,
        source: SettingsSource | None,
        as_worker: Worker | None,
    ) -> None:
        self._settings = settings
        self._announce = announce
        self._source = source
        self._as_worker = as_worker
        self._loop = asyncio.get_running_loop()
        self._runtime_file = RuntimeFile()
        self._server: Server | None = None
        self._signals: list[int] = []
        self._must_reload = False
        """SIGHUP came, and no reload has begun since."""
        self._is_reloading = False
        self._place = ""

    async def run(self, *, any_port: bool) -> None:
        for number in _STOPPING:
            signal.signal(number, self._obey)
        if self._source is not None:
            self._loop.add_signal_handler(signal.SIGHUP, self._reload_soon)
        worker = self._as_worker
        if worker is not None:
            self._loop.add_reader(worker.parent, self._parent_has_gone, worker.parent)
        try:
            await serve(
                self._settings, self._listening, self._ready, any_port=any_port, as_worker=worker
            )
        finally:
            self._runtime_file.remove()

    def _listening(self, host: str, port: int, http_url: str | None) -> None:
        if self._as_worker is None:
            self._runtime_file.write(self._settings, host, port, http_url)
        self._announce(host, port, http_url)
        self._place = place_of(host, port)

    def _ready(self, server: Server) -> None:
        gc.freeze()  # the modules, which are all loaded by now
        gc.enable()
        self._server = server
        notify("READY=1", f"STATUS=listening on {self._place}")
        keep_watchdog_quiet(self._loop)
        for _ in self._signals:
            server.stop()
        if self._must_reload:
            self._reload_soon()

    def _obey(self, number: int, _: object) -> None:
        # The watchdog starts in the signal handler, because the event loop itself may hang.
        if not self._signals:
            seconds = self._settings.limits.drain_seconds_max + _LAST_RESORT_SECONDS
            threading.Thread(target=_end_for_certain, args=(seconds,), daemon=True).start()
        self._signals.append(number)
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        notify("STOPPING=1", "STATUS=stopping: running turns get time to finish")
        if self._server is not None:
            self._server.stop()

    def _parent_has_gone(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        log.warning("the process that started this worker is gone: shutting down")
        self._obey(signal.SIGTERM, None)

    def _reload_soon(self) -> None:
        self._must_reload = True
        if self._server is not None and not self._is_reloading:
            self._is_reloading = True
            self._server.services.spawn(partial(self._reload, self._server))

    async def _reload(self, server: Server) -> None:
        """Reloads once after the last signal. Two reloads at the same time could end with the older
        settings, and a token that was removed would be valid again."""
        assert self._source is not None
        try:
            while self._must_reload:
                self._must_reload = False
                notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1_000}")
                self._runtime_file.note_reload(await _reload(server, self._source))
        finally:
            self._is_reloading = False
            notify("READY=1")


async def _reload(server: Server, source: SettingsSource) -> dict[str, list[str]]:
    """Returns what changed, what needs a restart, and what is wrong; logs it too."""
    from nplt_server.reload import reload

    found: dict[str, list[str]] = {"changed": [], "need_restart": [], "mistakes": []}
    try:
        settings = await anyio.to_thread.run_sync(source.load)
        done = await reload(server, settings, started_with=source.loaded)
    except ConfigurationError as error:
        found["mistakes"] = list(error.mistakes)
        for mistake in error.mistakes:
            log.error("the settings stay as they were: %s", mistake)
        return found
    found |= {"changed": list(done.changed), "need_restart": list(done.need_restart)}
    log.info("took over changed settings: %s", ", ".join(done.changed) or "none")
    if done.need_restart:
        log.warning("these settings need a restart: %s", ", ".join(done.need_restart))
    return found


def _end_for_certain(seconds: float) -> None:
    time.sleep(seconds)
    log.critical("something would not end; what was acknowledged is on disk: leaving it")
    os._exit(1)


_LOCK_SECONDS_MAX = 0.1
"""A client that checks whether a server is running holds the lock for a moment."""


class RuntimeFile:
    """Tells `nplt` of the same user where the server listens: `server.json` in the user's state
    folder (`~/.local/state/nplt`), readable by that user alone. The server holds a lock on it
    while it runs, so that a stale file of a killed server can be recognized. If one user runs
    two servers, the first keeps the file."""

    def __init__(self) -> None:
        self._path = user_dir("state") / "server.json"
        self._descriptor: int | None = None
        self._described: dict[str, Any] = {}

    @staticmethod
    def read() -> dict[str, Any] | None:
        """The content of the file that a running server of this user wrote; `None` if no server
        runs."""
        try:
            with (user_dir("state") / "server.json").open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return dict(json.load(file))
        except (OSError, ValueError):
            pass
        return None  # left behind by a server that was killed, or just being written

    def write(self, settings: Settings, host: str, port: int, http_url: str | None) -> None:
        """Writes the file. A failure is only logged: clients can still name the server's
        address."""
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
        described = {
            "url": _url("nplts" if settings.listen.tls else "nplt", host, port),
            "http": http_url,
            "unix": str(settings.listen.unix) if settings.listen.unix else None,
            "pid": os.getpid(),
            "instance": INSTANCE_ID,
            "version": __version__,
            "data_dir": str(settings.data_dir),
        }
        os.fchmod(descriptor, 0o600)
        self._described = described
        self._put(descriptor)

    def note_reload(self, found: dict[str, list[str]]) -> None:
        """Adds what came of the last reload, for `nplt-server reload`."""
        if self._descriptor is not None:
            found = {name: [each[:200] for each in found[name][:10]] for name in found}
            before = self._described.get("reload")
            number = before["number"] + 1 if isinstance(before, dict) else 1
            self._described["reload"] = {"number": number, **found}
            self._put(self._descriptor)

    def _put(self, descriptor: int) -> None:
        content = json.dumps(self._described).encode() + b"\n"
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))

    def remove(self) -> None:
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _url(scheme: str, host: str, port: int) -> str:
    # A server that listens on all addresses is reached at the loopback address.
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"{scheme}://{place_of(host, port)}"


def _url_of(sockets: list[socket.socket], scheme: str) -> str | None:
    if not sockets:
        return None
    host, port = sockets[0].getsockname()[:2]
    return f"{_url(scheme, str(host), int(port))}/"


async def bind_http(
    settings: Settings, *, share_port: bool = False, listen: bool = True
) -> list[socket.socket]:
    """Binds the port for HTTP, unless the settings turn it off. A free port replaces the default
    one if that is taken, or if the server's other port is a free one too."""
    chosen = settings.listen
    if not chosen.http:
        return []
    is_asked_for = "http_port" in chosen.model_fields_set
    return await bind(
        chosen.host,
        chosen.http_port if is_asked_for or chosen.port else 0,
        any_port=not is_asked_for,
        share_port=share_port,
        listen=listen,
        setting="--http-port",
    )


async def _bind_metrics(settings: Settings, *, share_port: bool) -> list[socket.socket]:
    if settings.metrics.address is None:
        return []
    return await bind(*settings.metrics.address, share_port=share_port, setting="metrics.listen")


async def bind(
    host: str,
    port: int,
    *,
    any_port: bool = False,
    share_port: bool = False,
    listen: bool = True,
    setting: str = "--port",
) -> list[socket.socket]:
    """Binds a socket to every address of the host; with port 0 all get the port of the first.
    With `any_port` a free port replaces one that is taken; with `share_port` other processes
    can bind the same port (SO_REUSEPORT). Errors name the flag or the
    setting that chooses the port."""
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    try:
        # An ASCII name is passed as bytes, so that Python does not load the IDNA codec.
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
            return await bind(host, 0, share_port=share_port, listen=listen)
        hint = ""
        if error.errno == errno.EADDRINUSE:
            hint = f"; stop what listens there, or choose another port with {setting}"
        raise CannotServe(f"can't listen on {host}:{port}: {error.strerror}{hint}") from None
    return sockets


def _bind_unix(settings: Settings, left_over: ExitStack) -> list[socket.socket]:
    """Binds the Unix socket, if the settings name one; `left_over` closes and removes it. Only
    one server uses the data directory, so a socket that refuses connections is stale."""
    path = settings.listen.unix
    if path is None:
        return []
    sock = left_over.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        sock.setblocking(False)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                is_stale = probe.connect_ex(str(path)) != 0
            if is_stale:
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


# Several servers behind one port: each worker binds the port itself (SO_REUSEPORT), and the
# kernel distributes connections over them. Each also listens at an address of its own, which it
# advertises to the others so that they can relay to it: a port of the loopback interface, or, if
# the settings advertise host:port, the n-th port after that one. If the settings name no secret
# for the relay, one is generated. Workers detect through a pipe that their parent has exited, and
# stop.

_AGAIN_SECONDS: Final = 1.0
"""A worker that dies sooner than this after its start is restarted after a pause."""


class Worker(Struct, frozen=True, kw_only=True):
    """The sockets and descriptors that a worker inherits from its parent process."""

    sockets: list[socket.socket]
    """The sockets it listens on, besides the port that all workers share."""
    parent: int
    """The read end of a pipe; it becomes readable when the parent exits."""
    is_alone: bool
    """No other worker runs yet that might be copying attachments."""


class Workers:
    """Starts `count` servers and restarts those that die."""

    def __init__(self, source: SettingsSource, count: int) -> None:
        self._source = source
        self._settings = source.loaded
        self._count = count
        self._running: dict[int, tuple[int, float]] = {}
        """The number of each worker and when it was started, by process id."""
        self._shared: list[socket.socket] = []
        self._unix: list[socket.socket] = []
        self._signals: list[int] = []
        self._alive = os.pipe()

    def run(self, announce: Announce, *, any_port: bool = False) -> int:
        """Returns the exit code once all workers have ended: 0 if a signal stopped them."""
        with ExitStack() as left_over:
            host, port, http_url = asyncio.run(self._bind(left_over, any_port=any_port))
            if self._settings.cluster.secret_file is None:
                self._make_secret(left_over)
            import nplt_server.app  # noqa: F401  imported once, before the workers fork

            runtime_file = RuntimeFile()
            left_over.callback(runtime_file.remove)
            for each in (*_STOPPING, signal.SIGHUP):
                signal.signal(each, self._obey)
            for number in range(self._count):
                if code := self._start(number):
                    self._obey(signal.SIGTERM, None)
                    self._supervise()
                    return code
            if not self._signals:
                runtime_file.write(self._settings, host, port, http_url)
                announce(host, port, http_url)
                notify("READY=1", f"STATUS={self._count} workers on {place_of(host, port)}")
            self._supervise()
        return 0

    async def _bind(self, left_over: ExitStack, *, any_port: bool) -> tuple[str, int, str | None]:
        """Reserves the ports, even while no worker listens on them."""
        listen = self._settings.listen
        tried = await bind(listen.host, listen.port, any_port=any_port, listen=False)
        host, port = tried[0].getsockname()[:2]
        for sock in tried:
            sock.close()  # it was free, so only the workers started here will share it
        self._shared = await bind(listen.host, port, share_port=True, listen=False)
        for sock in self._shared:
            left_over.enter_context(sock)
        self._unix = _bind_unix(self._settings, left_over)
        chosen: dict[str, object] = {"port": port}
        tried = await bind_http(self._settings, listen=False)
        http_url = _url_of(tried, "https" if listen.tls else "http")
        if tried:
            chosen["http_port"] = tried[0].getsockname()[1]
            for sock in tried:
                sock.close()
        listen = listen.model_copy(update=chosen)
        self._settings = self._settings.model_copy(update={"listen": listen})
        for sock in await bind_http(self._settings, share_port=True, listen=False):
            self._shared.append(left_over.enter_context(sock))
        return str(host), int(port), http_url

    def _make_secret(self, left_over: ExitStack) -> None:
        from tempfile import NamedTemporaryFile  # only workers need it

        made = NamedTemporaryFile(prefix="nplt-")  # noqa: SIM115  `left_over` closes it
        file = left_over.enter_context(made)
        file.write(secrets.token_urlsafe(32).encode())
        file.flush()
        cluster = self._settings.cluster.model_copy(update={"secret_file": Path(file.name)})
        self._settings = self._settings.model_copy(update={"cluster": cluster})

    def _start(self, number: int) -> int:
        """Returns 0 once the worker listens, or its exit code if it ended instead."""
        ready_read, ready_write = os.pipe()
        # Signals are blocked until the parent has noted the pid and the child has set its handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
        pid = os.fork()
        if pid == 0:
            os.close(ready_read)
            self._live(number, ready_write)
        os.close(ready_write)
        self._running[pid] = (number, time.monotonic())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        is_listening = bool(os.read(ready_read, 1))
        os.close(ready_read)
        if is_listening or self._signals:
            return 0
        del self._running[pid]
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) or 1

    def _live(self, number: int, ready_write: int) -> None:
        code = 1
        try:
            for each in (*_STOPPING, signal.SIGHUP):
                signal.signal(each, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
            os.setpgid(0, 0)  # signals of the terminal reach workers through the parent
            os.close(self._alive[1])
            os.environ.pop("NOTIFY_SOCKET", None)  # the parent reports to systemd
            for sock in self._shared:
                sock.close()

            def notify_parent(_host: str, _port: int, _http_url: str | None) -> None:
                os.write(ready_write, b"1")
                os.close(ready_write)

            worker, settings = self._worker(number)
            run(settings, notify_parent, source=self._source, as_worker=worker)
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
        """Restarts workers that die; returns when all have ended after a signal."""
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
        reloads = number == signal.SIGHUP
        if not reloads:
            self._signals.append(number)
        for pid in list(self._running):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGHUP if reloads else signal.SIGTERM)


def why_no_workers(settings: Settings) -> str | None:
    """Returns a sentence on which settings `--workers` still needs, or None if it can run."""
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        return "--workers bind the port themselves and take no socket from systemd"
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
