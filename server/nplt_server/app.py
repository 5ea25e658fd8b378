"""The composition root: builds the server from settings, runs it, takes it down.

Everything is put together here and nowhere else. Order of life: settings,
data directory (locked), conversations, sockets, ready; then, on a signal, no
new connections, running turns finish or are interrupted, everyone is told,
everything is on disk, exit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

import anyio
import anyio.abc

from nplt_protocol.codes import ErrorCode
from nplt_protocol.events import SessionEvent
from nplt_server import house_rules
from nplt_server.connections.front_desk import FrontDesk
from nplt_server.connections.listener import Listener, bind, server_tls
from nplt_server.connections.premises import Premises
from nplt_server.connections.users import LOCAL_USER, Users
from nplt_server.conversations.activity import Spawn
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.household import Household, TurnPlaces
from nplt_server.conversations.library import Library
from nplt_server.conversations.registry import Registry
from nplt_server.equipment import Equipment, equip
from nplt_server.errors import CannotServe, ConfigurationError
from nplt_server.first_words import greeting
from nplt_server.histories import open_library
from nplt_server.providers.building import build_router
from nplt_server.providers.router import ProviderRouter
from nplt_server.reception import Reception
from nplt_server.settings import Settings
from nplt_storage.attachments import AttachmentFiles
from nplt_storage.conversation.row_lists import RowQuery
from nplt_storage.errors import ConversationReadOnly
from nplt_storage.ids import new_entry_id, new_session_id

log = logging.getLogger(__name__)

_INTERRUPT_SECONDS_MAX = 3.0
_PROVIDERS_SECONDS_MAX = 2.0
_LAST_RESORT_SECONDS = 6.5
"""After the time turns are given to end: what still holds the process up (a function
that blocks, a child that won't go) holds nothing that was promised."""
_RESUME_ATTEMPTS = 5
_RESUME_SECONDS = 5.0


def utc_now() -> datetime:
    return datetime.now(UTC)


class Server:
    """A server that is listening; `stop` takes it down gracefully."""

    def __init__(
        self,
        settings: Settings,
        premises: Premises,
        listener: Listener,
        *,
        turns_are_over: Callable[[], None],
    ) -> None:
        self.address = listener.address
        self._turns_are_over = turns_are_over
        self._settings = settings
        self._premises = premises
        self._listener = listener
        self._stopping = anyio.Event()
        self._patience = anyio.CancelScope()

    def stop(self) -> None:
        """Once: finish what runs, within limits. Twice: interrupt it now."""
        if self._stopping.is_set():
            self._patience.cancel()
        self._stopping.set()

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listener.serve)
            tasks.start_soon(self._look_after)
            await self._stopping.wait()
            self._listener.stop()
            await self._drain()
            tasks.cancel_scope.cancel()

    async def resume(self) -> None:
        """Prompts accepted in an earlier life are answered, whoever is there. Where
        another server may be at it, or died with it open, that takes a few attempts."""
        names = {user.name for user in self._settings.users} | {LOCAL_USER}
        for attempt in range(_RESUME_ATTEMPTS):
            if attempt:
                await anyio.sleep(_RESUME_SECONDS)
            if all([await self._resume_all(user) for user in names]):
                return

    async def _resume_all(self, user: str) -> bool:
        query = RowQuery(unfinished=True)
        all_taken_up = True
        for row in await self._premises.household.library.all_rows(user, query):
            try:
                if not row.damaged:
                    await self._premises.registry.get(row.session_id, user)
            except ConversationReadOnly:
                all_taken_up = False
            except Exception as error:
                log.warning("%s can't be taken up again: %s", row.session_id, error)
        return all_taken_up

    async def _look_after(self) -> None:
        while True:
            await anyio.sleep(1.0)
            try:
                self._premises.front_desk.sweep(asyncio.get_running_loop().time())
                await self._premises.registry.close_unused()
            except Exception:
                log.exception("looking after connections and conversations failed; going on")

    async def _drain(self) -> None:
        self._premises.household.draining = True
        activity = self._premises.household.activity
        conversations = list(self._premises.registry)
        busy = sum(conversation.is_busy for conversation in conversations)
        log.info("shutting down: %d conversations are busy", busy)
        for conversation in conversations:
            conversation.audience.emit(
                SessionEvent(session_id=conversation.session_id, event="shutdown")
            )
            conversation.set_aside("the server is shutting down")
        with anyio.move_on_after(self._settings.limits.drain_seconds_max) as self._patience:
            # Quiet: no turn runs and every line is written. Prompts that only
            # wait are on disk and can be left for the next start.
            await activity.quiet()
        for conversation in self._premises.registry:
            conversation.interrupt("the server is shutting down")
        with anyio.move_on_after(_INTERRUPT_SECONDS_MAX):
            await activity.quiet()
        self._turns_are_over()
        async with anyio.create_task_group() as tasks:
            for conversation in self._premises.registry:
                tasks.start_soon(_last_word, conversation)
        for session in self._premises.front_desk:
            session.send_away("The server is shutting down.", ErrorCode.SHUTTING_DOWN)
        with anyio.move_on_after(1.0):
            await self._premises.front_desk.empty()


async def _last_word(conversation: Conversation) -> None:
    try:
        await conversation.leave_word()
    except Exception:
        log.exception("%s: its last word could not be written", conversation.session_id)


async def serve(settings: Settings, ready: Callable[[Server], None]) -> None:
    """The whole life of a server; `ready` is told when it is listening."""
    raise_descriptor_limit()
    tls = _load_tls(settings)
    router = build_router(settings)
    equipment = equip(settings, router, utc_now)
    library = await open_library(settings, utc_now)
    try:
        # Outside the task group, so that a failure comes out as it is.
        sockets = await _bind(settings)
        async with anyio.create_task_group() as tasks:
            spawn = _spawn_into(tasks)
            premises = _furnish(settings, library, router, equipment, spawn)
            reception = _open_reception(settings, premises, tls, spawn)
            tools = anyio.CancelScope()
            server = Server(
                settings,
                premises,
                Listener(sockets, reception.welcome),
                turns_are_over=tools.cancel,
            )
            ready(server)
            spawn(server.resume)
            spawn(lambda: _within(tools, equipment.mcp_servers.run))
            await server.run()
            await premises.registry.close_all()
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await library.close()
        # What was promised is kept by now: who does not let go is left behind.
        with anyio.move_on_after(_PROVIDERS_SECONDS_MAX, shield=True):
            await router.aclose()


async def _within(scope: anyio.CancelScope, work: Callable[[], Awaitable[None]]) -> None:
    with scope:
        await work()


def _furnish(
    settings: Settings,
    library: Library,
    router: ProviderRouter,
    equipment: Equipment,
    spawn: Spawn,
) -> Premises:
    limits = settings.limits
    conversation_limits = house_rules.conversation_limits(limits)
    household = Household(
        library=library,
        files=AttachmentFiles(settings.data_dir / "files"),
        router=router,
        tools=equipment.runner,
        limits=conversation_limits,
        turn_limits=house_rules.turn_limits(limits),
        thinking=equipment.thinking,
        clock=utc_now,
        new_session_id=new_session_id,
        new_entry_id=new_entry_id,
        spawn=spawn,
        places=TurnPlaces(conversation_limits),
        approvals=house_rules.approval_rules(settings),
    )
    return Premises(
        household=household,
        registry=Registry(household),
        front_desk=FrontDesk(
            users=Users({user.name: user.token_sha256 for user in settings.users}),
            limits=house_rules.connection_limits(limits),
            greeting=greeting(router.default_model, settings.providers),
        ),
        limits_as_json=house_rules.told_to_clients(limits),
        started_at=anyio.current_time(),
    )


def _open_reception(
    settings: Settings, premises: Premises, tls: ssl.SSLContext | None, spawn: Spawn
) -> Reception:
    return Reception(
        premises=premises,
        wire_limits=house_rules.wire_limits(
            settings.limits, need_tokens=premises.front_desk.users.need_tokens
        ),
        upload_limits=house_rules.upload_limits(settings.limits),
        tls=tls,
        handshake_seconds_max=settings.limits.hello_seconds_max,
        spawn=spawn,
    )


def _spawn_into(tasks: anyio.abc.TaskGroup) -> Spawn:
    async def guarded(work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception:
            # One task's bug must not take down its neighbours.
            log.exception("a task failed")

    def spawn(work: Callable[[], Awaitable[None]]) -> None:
        tasks.start_soon(guarded, work)

    return spawn


async def _bind(settings: Settings) -> list[socket.socket]:
    host, port = settings.listen.host, settings.listen.port
    try:
        return await bind(host, port)
    except OSError as error:
        raise CannotServe(f"can't listen on {host}:{port}: {error.strerror}") from None


def _load_tls(settings: Settings) -> ssl.SSLContext | None:
    tls = settings.listen.tls
    if tls is None:
        return None
    try:
        return server_tls(str(tls.cert), str(tls.key))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError([f"listen.tls: can't load the certificate: {error}"]) from None


def raise_descriptor_limit() -> None:
    """A thousand connections need more than the usual soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _end_for_certain(seconds: float) -> None:
    def wait_and_end() -> None:
        time.sleep(seconds)
        log.critical("something would not end; what was acknowledged is on disk: leaving it")
        os._exit(1)

    threading.Thread(target=wait_and_end, name="last resort", daemon=True).start()


async def run_until_signalled(settings: Settings, announce: Callable[[Server], None]) -> None:
    """SIGTERM or SIGINT drains; a second one hurries."""
    loop = asyncio.get_running_loop()
    running: list[Server] = []
    early: list[bool] = []

    def obey(*_: object) -> None:
        # Here and not on the loop, which may be what does not go on.
        if not early:
            _end_for_certain(settings.limits.drain_seconds_max + _LAST_RESORT_SECONDS)
        early.append(True)
        loop.call_soon_threadsafe(stop)

    def stop() -> None:
        for server in running:
            server.stop()

    def ready(server: Server) -> None:
        running.append(server)
        if early:
            server.stop()
        announce(server)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, obey)
    await serve(settings, ready)
