"""Builds the server from its settings, runs it, and shuts it down.

`start` opens the histories and the sockets, and then calls `serve` here, which builds the
services, the tools, the MCP servers and the table of known models. Nothing else creates these
objects. Vendor SDKs are not imported here; a provider imports its own at its first call.

The accept loops survive failures of single connections and of the system: when file
descriptors run out they back off, 10 ms to 1 s, and continue. Each accepted socket is either
refused with a reason or admitted: it is sent the banner and gets a session.

A server that stops accepts no more connections, lets running turns finish or interrupts them,
notifies its clients, and exits once everything is on disk.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial
from typing import Protocol, TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_thread
from msgspec import Struct

from nplt_protocol import (
    FRAME_PAYLOAD_BYTES_MAX,
    ErrorCode,
    ProtocolError,
    Received,
    ServerConnection,
    WireLimits,
)
from nplt_protocol.stream import FrameStream
from nplt_server import __version__
from nplt_server.connections.admission import Admission, Arrival
from nplt_server.connections.proxies import Accepted, accept_directly, accept_through
from nplt_server.connections.session import ServerState, Session
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.due_prompts import DuePrompts
from nplt_server.conversations.services import ContextServices, Services, begin_epoch_and_summarize
from nplt_server.conversations.session_manager import SessionManager
from nplt_server.conversations.watchers import Watchers
from nplt_server.errors import ConfigurationError
from nplt_server.extensions import check_tool_names, load_extensions
from nplt_server.histories import Histories, HistoryFiles, utc_now
from nplt_server.hooks import Hooks
from nplt_server.logs import transcript_for
from nplt_server.masking import SecretMask, secrets_among
from nplt_server.providers import ModelCatalog
from nplt_server.providers.credentials import known_keys
from nplt_server.providers.learned_forms import LearnedForms
from nplt_server.providers.models import KnownModels
from nplt_server.providers.router import ProviderRouter, build_router
from nplt_server.quotas import Quotas
from nplt_server.redacted_prompts import RedactedPrompts
from nplt_server.requests import HANDLERS
from nplt_server.settings import (
    AnyProviderSettings,
    Limits,
    LocalSettings,
    OfflineSettings,
    Settings,
)
from nplt_server.tasks import BackgroundTasks, Spawn, TurnSlots
from nplt_server.tokens import TokenCounting
from nplt_server.tools import ALL_TOOLS, Tool, ToolPolicy, run_tool, unknown_tools
from nplt_server.tools.builtin import builtin_tools
from nplt_server.tools.executor import AllTools, ToolExecutor
from nplt_server.tools.mcp import McpServerConfig, McpServers
from nplt_server.widgets import default_widgets, widget_tools
from nplt_storage.attachments import AttachmentFiles, end_copy, unfinished_copies
from nplt_storage.durations import SHORT_BUCKET_SECONDS, Durations
from nplt_storage.errors import ConversationReadOnly, StorageError
from nplt_storage.files.directory import COPY_MARK_NAME, FREE_BYTES_MIN
from nplt_storage.files.format import LOCAL_USER
from nplt_storage.ids import new_entry_id, new_session_id
from nplt_storage.rows import RowQuery
from nplt_storage.store import MemberNote

log = logging.getLogger(__name__)

_ALLOWED: dict[str, ToolPolicy] = {"notebook": "allow", "todo": "allow"}
"""The policies of tools that change only their own conversation."""
_INTERRUPT_SECONDS_MAX = 3.0
_PROVIDERS_SECONDS_MAX = 2.0
_RESUME_ATTEMPTS = 5
_RESUME_SECONDS = 5.0
_BACK_OFF_SECONDS = (0.01, 1.0)
_EXPIRED_SECONDS = 3600.0
_MEET_SECONDS = 15.0
_MEMBER_SECONDS = 1.0
_SWEEP_SECONDS = 1.0
_HOW_TO_GET_MORE = (
    "set OPENAI_API_KEY or ANTHROPIC_API_KEY where the server starts, "
    "or list providers in its settings"
)


Parts: TypeAlias = tuple[ProviderRouter, ContextServices, ToolExecutor, McpServers]


def build_parts(
    settings: Settings,
    environ: Mapping[str, str] = os.environ,
    *,
    clock: Callable[[], datetime] = utc_now,
    mcp_servers: McpServers | None = None,
    learned: LearnedForms | None = None,
) -> Parts:
    """`clock` gives the times that are stored. A server that takes over new settings gives the MCP
    servers that go on, and what it has `learned` of models. Raises `ConfigurationError` for
    mistakes in what the settings name."""
    known = KnownModels(settings)
    secrets = _known_secrets(settings, environ)
    router = build_router(settings, environ, known=known, secrets=secrets, learned=learned)
    own = load_extensions(settings.extensions)
    context = ContextServices(
        counting=TokenCounting(own.token_counter),
        widgets=cache(lambda: (*default_widgets(), *own.widgets)),
        on_compression=own.on_compression or begin_epoch_and_summarize,
        models=ModelCatalog(known),
        rules=settings.context,
        summarizer=settings.roles.summarizer,
        namer=settings.roles.summarizer,
    )
    for name in settings.models:
        if not router.can_call(name):
            log.warning("models: %s is not among the models there are", name)
    servers = mcp_servers or _build_mcp_servers(settings, secrets)

    def make_own() -> tuple[Tool, ...]:
        builtin = builtin_tools(clock, settings.tool_roots, never=[settings.data_dir])
        return (*builtin, *widget_tools(context.widgets()), *own.tools)

    tools = AllTools(make_own, servers if settings.mcp_servers else None)
    # Tools of MCP servers are known only once those have been met.
    named: dict[str, ToolPolicy] = {
        name: policy
        for name, policy in settings.tools.items()
        if name.partition("__")[0] not in settings.mcp_servers
    }
    if named:
        known_tools = [tool.description.name for tool in tools.own] + ["read_file", "list_files"]
        if mistakes := unknown_tools(named, known_tools):
            raise ConfigurationError(mistakes)
    if own.tools or own.widgets:
        check_tool_names(tools.own)
    said_of_all = ALL_TOOLS in settings.tools
    policies: dict[str, ToolPolicy] = (
        dict(settings.tools) if said_of_all else _ALLOWED | settings.tools
    )
    for name, server in settings.mcp_servers.items():
        if not said_of_all or "policy" in server.model_fields_set:
            policies[f"{name}__"] = server.policy
    runner = ToolExecutor(
        tools,
        clock=clock,
        policies=policies,
        seconds_max=settings.limits.tool_seconds_max,
        at_once_max=settings.limits.tools_at_once_max,
        calls_max=settings.limits.tool_calls_per_step_max,
        secrets=secrets,
        runner=own.tool_executor or run_tool,
    )
    return router, context, runner, servers


def _known_secrets(settings: Settings, environ: Mapping[str, str]) -> SecretMask:
    given = (each for one in settings.mcp_servers.values() for each in (one.env, one.headers))
    of_tools = (secret for named in given for secret in secrets_among(named))
    return SecretMask((*known_keys(settings, environ), *of_tools))


def _build_mcp_servers(settings: Settings, secrets: SecretMask) -> McpServers:
    mistakes: list[str] = []
    configs: list[McpServerConfig] = []
    for name, server in settings.mcp_servers.items():
        try:
            config = McpServerConfig(
                name=name,
                command=server.command,
                url=server.url,
                env=server.env,
                headers=server.headers,
                cwd=str(server.cwd) if server.cwd is not None else None,
                call_seconds_max=server.seconds_max or settings.limits.tool_seconds_max,
            )
            configs.append(config)
        except ValueError as error:
            mistakes.append(f"mcp_servers.{name}: {error}")
    if mistakes:
        raise ConfigurationError(mistakes)
    return McpServers(configs, secrets=secrets)


class Door(Protocol):
    """Another way into the server, such as HTTP. The server accepts connections from its sockets
    and closes these when it stops."""

    @property
    def sockets(self) -> Sequence[socket.socket]: ...

    @property
    def url(self) -> str | None: ...

    def admit(self, server: Server, accepted: Accepted) -> None:
        """Serves an accepted connection, or refuses it."""
        ...

    def close(self) -> None:
        """Closes the connections, at the end of a shutdown."""
        ...


@dataclass(kw_only=True, eq=False, repr=False)
class Server(ServerState):
    """A server that is listening; `stop` takes it down gracefully."""

    settings: Settings
    wire_limits: WireLimits
    tls: ssl.SSLContext | None
    doors: Sequence[Door] = ()
    open_routers: set[ProviderRouter] = field(default_factory=set)
    """The router, and those that were replaced by others while turns used them."""
    loop_delay: Durations = field(default_factory=lambda: Durations(SHORT_BUCKET_SECONDS))
    """How late the event loop runs what is due, measured once a second while turns run."""
    _sweep_due: float | None = None
    _members: frozenset[str] = frozenset()
    """The servers of the cluster that were there when it was last looked."""
    _unnamed: int = 0
    """The connections from proxies that have not named their client yet."""
    mcp_scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _stopping: anyio.Event = field(default_factory=anyio.Event)
    _drain_scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    def stop(self) -> None:
        """Begins a graceful shutdown: running turns get time to finish. A second call interrupts
        them."""
        if self._stopping.is_set():
            self._drain_scope.cancel()
        self._stopping.set()

    async def run(self, sockets: list[socket.socket]) -> None:
        spawn = self.services.spawn
        spawn(self._resume)
        spawn(self.services.router.find_local_servers)
        spawn(self.run_mcp_servers)
        async with anyio.create_task_group() as tasks:
            owned = "checking what this server owns"
            sweeping = "sweeping connections and conversations"
            tasks.start_soon(_every, self._sweep, sweeping, _SWEEP_SECONDS)
            tasks.start_soon(_every_second, self.session_manager.check_leases, owned)
            tasks.start_soon(self._run_due)
            expiring = "removing the files of expired conversations"
            tasks.start_soon(_every, self._remove_expired, expiring, _EXPIRED_SECONDS)
            if self.services.histories.shared is not None:
                tasks.start_soon(_every, self._meet_peers, "meeting other servers", _MEET_SECONDS)
                lost = "looking for servers that are gone"
                tasks.start_soon(_every, self._notice_lost_members, lost, _MEMBER_SECONDS)
            async with anyio.create_task_group() as accepting:
                for sock in sockets:
                    accepting.start_soon(self._accept_from, sock, self._admit, True)
                for door in self.doors:
                    for sock in door.sockets:
                        admit = partial(door.admit, self)
                        accepting.start_soon(self._accept_from, sock, admit, False)
                await self._stopping.wait()
                accepting.cancel_scope.cancel()
            for sock in (*sockets, *(sock for door in self.doors for sock in door.sockets)):
                sock.close()
            await self._drain()
            tasks.cancel_scope.cancel()
        await self.session_manager.close_all()

    # Connections

    async def _accept_from(
        self,
        listening: socket.socket,
        admit: Callable[[Accepted], None],
        needs_header: bool,
    ) -> None:
        """`needs_header`: a proxy names its client before anything else. One of HTTP may do that in
        the headers of requests."""
        loop = asyncio.get_running_loop()
        shortest, longest = _BACK_OFF_SECONDS
        pause = shortest
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue
                log.warning("can't accept: %s; trying again in %g s", error.strerror, pause)
                await anyio.sleep(pause)
                pause = min(pause * 2, longest)
                continue
            pause = shortest
            accepted = accept_directly(sock)
            if self.admission.proxies.holds(accepted.address):
                work = partial(self._admit_through, accepted, admit, needs_header=needs_header)
                self.services.spawn(work)
            else:
                admit(accepted)
            await anyio.lowlevel.checkpoint()  # lets accepted connections start before later ones

    async def _admit_through(
        self, proxy: Accepted, admit: Callable[[Accepted], None], *, needs_header: bool
    ) -> None:
        """Reads which client the proxy connects, and admits it."""
        if self._unnamed >= self.services.limits.connections_max:
            proxy.sock.close()
            return
        self._unnamed += 1
        try:
            seconds = self.services.limits.hello_seconds_max
            accepted = await accept_through(proxy, seconds=seconds, needs_header=needs_header)
        except OSError as error:
            self.admission.log_refusal(proxy.address, str(error))
            proxy.sock.close()
            return
        except BaseException:  # the server stops
            proxy.sock.close()
            raise
        finally:
            self._unnamed -= 1
        admit(accepted)

    def _admit(self, accepted: Accepted) -> None:
        """Checks the limits and starts the session in a task of its own."""
        admission = self.admission
        arrival = Arrival(accepted.address)
        reason = admission.reason_to_refuse(arrival.address)
        if reason is not None and self.tls is not None:
            # Nothing can be sent before the TLS handshake, which the peer may never finish.
            admission.log_refusal(arrival.address, reason)
            accepted.sock.close()
            return
        # The peer is looked up at once, because later its program may have closed the socket.
        reason = reason or admission.reason_to_refuse_user(accepted)
        number = admission.arrive(arrival)
        self.services.spawn(partial(self._serve_connection, accepted, arrival, number, reason))

    async def _serve_connection(
        self, accepted: Accepted, arrival: Arrival, number: int, reason: str | None
    ) -> None:
        admission, address = self.admission, arrival.address
        try:
            opened = None
            with arrival.scope:
                opened = await self._open_stream(accepted)
            del arrival  # frees its cancel scope, which an idle connection would keep in memory
            if opened is None:  # cancelled to make room for another connection
                accepted.sock.close()
                return
            stream, connection = opened
            if reason is not None:
                admission.log_refusal(address, reason)
                stream.send(connection.send_text(reason))
                await stream.close()
                return
            session = Session(stream, connection, self, HANDLERS)
            session.address = address
            if not admission.sign_in(number, session):
                stream.abort()
                return
            self.sessions.add(session)
            try:
                await session.run()
            except (ProtocolError, OSError) as error:
                log.warning("connection from %s ended: %s", stream.peer, error)
            except Exception:
                # A failure of one connection must not affect the others.
                log.exception("connection from %s failed", stream.peer)
            finally:
                self.sessions.discard(session)
                stream.abort()
        except (OSError, ssl.SSLError) as error:
            admission.log_refusal(address, f"the connection failed at its start: {error}")
            accepted.sock.close()
        finally:
            admission.sign_out(number)

    async def _open_stream(
        self, accepted: Accepted
    ) -> tuple[FrameStream[Received], ServerConnection]:
        accepted.sock.setblocking(False)
        connection = ServerConnection(self.wire_limits)
        connection.count_fragments_in(self.admission.unfinished)
        stream: FrameStream[Received] = FrameStream(
            connection, limits=self.wire_limits, log=transcript_for(accepted.name)
        )
        loop = asyncio.get_running_loop()
        tls = None if accepted.sock.family == socket.AF_UNIX else self.tls
        await loop.connect_accepted_socket(
            lambda: stream,
            accepted.sock,
            ssl=tls,
            ssl_handshake_timeout=self.services.limits.hello_seconds_max if tls else None,
        )
        return stream, connection

    # Background work

    async def run_mcp_servers(self) -> None:
        """Runs the MCP servers until the last turn is over."""
        with self.mcp_scope:
            await self.services.mcp_servers.run()

    async def end_copies(self) -> None:
        """Removes the attachments of forks and imports that a crash left unfinished."""
        files = self.services.files.directory
        for session_id in await anyio.to_thread.run_sync(unfinished_copies, files):
            with suppress(StorageError):  # an unreachable history may hold the conversation
                is_there = await self.services.histories.find(session_id) is not None
                end = partial(end_copy, files, session_id, is_there=is_there)
                await anyio.to_thread.run_sync(end)

    async def _remove_expired(self) -> None:
        with suppress(StorageError):  # the next time will do
            await self.services.kept_files.remove_expired(self.services.files)

    async def _run_due(self) -> None:
        """Runs the prompts for later when their time has come."""
        mark = self.settings.data_dir / COPY_MARK_NAME
        prompts = DuePrompts(self.services, self.session_manager, self._user_names, copy_mark=mark)
        await prompts.run()

    @property
    def _user_names(self) -> list[str]:
        return sorted({user.name for user in self.settings.users} | {LOCAL_USER})

    async def _resume(self) -> None:
        """Runs the prompts that were accepted before a restart, without waiting for a client.
        Tries a few times, because another server may still hold a conversation."""
        # This builds the tools: after the server listens, and before the first prompt needs them.
        log.debug("%d tools are offered", len(self.services.tools.offer.descriptions))
        for attempt in range(_RESUME_ATTEMPTS):
            if attempt:
                await anyio.sleep(_RESUME_SECONDS)
            if all([await self._resume_all(user) for user in self._user_names]):
                return

    async def _resume_all(self, user: str) -> bool:
        all_resumed = True
        for row in await self.services.histories.all_rows(user, RowQuery(unfinished=True)):
            try:
                if not row.damaged:
                    await self.session_manager.get(row.session_id, user)
            except ConversationReadOnly:
                all_resumed = False
            except Exception as error:
                log.warning("%s can't be taken up again: %s", row.session_id, error)
        return all_resumed

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._sweep_due is not None and not self.services.activity.is_quiet:
            self.loop_delay.add(max(0.0, now - self._sweep_due))
        for session in (*self.sessions, *self.peers.sessions):
            session.check_timeouts(now)
        self.admission.forgive(now)
        await self.session_manager.close_unused()
        self._sweep_due = loop.time() + _SWEEP_SECONDS

    async def _meet_peers(self) -> None:
        """Tries to reach the other servers, so that one that can't be reached is known before a
        client needs it."""
        shared = self.services.histories.shared
        assert shared is not None
        own = shared.view.own_address
        addresses = {member.address for member in shared.view.members if member.address}
        await self.peers.meet(addresses - {own})

    async def _notice_lost_members(self) -> None:
        """Takes over what a server that is gone has left unfinished. No client may ask for it, and
        those that watch are shown its turns as running until then."""
        shared = self.services.histories.shared
        assert shared is not None
        members = frozenset(member.id for member in shared.view.members)
        lost, self._members = self._members - members, members
        if lost and not self.services.draining:
            self.services.spawn(self._resume)

    async def _drain(self) -> None:
        self.services.draining = True
        activity = self.services.activity
        conversations = list(self.session_manager)
        busy = sum(conversation.is_busy for conversation in conversations)
        conversations_are = "conversation is" if busy == 1 else "conversations are"
        log.info("shutting down: %d %s busy", busy, conversations_are)
        for broadcast in self.session_manager.broadcasts():
            broadcast.announce("shutdown")
        for conversation in conversations:
            conversation.queue.suspend("the server is shutting down")
        async with anyio.create_task_group() as handing_over:
            if self.peers.can_take_over:
                for conversation in conversations:
                    if conversation.record.lease is not None:
                        handing_over.start_soon(self._hand_over, conversation)
            seconds = self.settings.limits.drain_seconds_max
            self._drain_scope.deadline = anyio.current_time() + seconds
            with self._drain_scope:
                # Activity is quiet when no turn runs and every line is written. Queued
                # prompts are on disk and run after the next start.
                await activity.quiet()
                await anyio.lowlevel.checkpoint()
            handing_over.cancel_scope.cancel()
        for conversation in self.session_manager:
            conversation.interrupt("the server is shutting down")
        with anyio.move_on_after(_INTERRUPT_SECONDS_MAX):
            await activity.quiet()
        self.mcp_scope.cancel()
        async with anyio.create_task_group() as tasks:
            for conversation in self.session_manager:
                tasks.start_soon(_note_shutdown, conversation)
        for session in tuple(self.sessions):
            session.send_away("The server is shutting down.", ErrorCode.SHUTTING_DOWN)
        for door in self.doors:
            door.close()
        with anyio.move_on_after(1.0):
            await self.admission.connected.quiet()

    async def _hand_over(self, conversation: Conversation) -> None:
        """Releases the conversation to the other servers, and tells its clients to reattach
        there."""
        await conversation.activity.quiet()
        with anyio.CancelScope(shield=True):
            try:
                await self.session_manager.hand_over(conversation)
            except Exception:
                log.exception("%s could not be handed over", conversation.session_id)
        for session in (*self.sessions, *self.peers.sessions):
            if session.is_in(conversation):
                session.reattach_elsewhere()


async def _every_second(work: Callable[[], Awaitable[None]], what: str) -> None:
    await _every(work, what, 1.0)


async def _every(work: Callable[[], Awaitable[None]], what: str, seconds: float) -> None:
    while True:
        await anyio.sleep(seconds)
        try:
            await work()
        except Exception:
            log.exception("%s failed; going on", what)


async def _note_shutdown(conversation: Conversation) -> None:
    try:
        await conversation.queue.note_shutdown()
    except Exception:
        log.exception("%s: what waits could not be noted", conversation.session_id)


class Listening(Struct, frozen=True, kw_only=True):
    """The sockets on which a server accepts connections, and its other doors."""

    sockets: list[socket.socket]
    tls: ssl.SSLContext | None = None
    doors: Sequence[Door] = ()


async def serve(
    settings: Settings,
    histories: Histories,
    listening: Listening,
    ready: Callable[[Server], None],
    *,
    ends_copies: bool = True,
) -> None:
    """Serves until it is stopped; calls `ready` when connections are accepted. The caller opens
    and closes the histories and the sockets. With `ends_copies`, unfinished copies of
    attachments are removed; no other process may be copying in this data directory then."""
    parts = build_parts(settings, clock=histories.clock)
    open_routers = {parts[0]}
    try:
        async with BackgroundTasks() as tasks:
            greeting = banner(parts[0].default_model, settings.providers)
            admission = Admission(settings, greeting)
            services = _services(
                settings, histories, parts, tasks.spawn, need_tokens=admission.need_tokens
            )
            server = _server(settings, listening, services, admission, open_routers)
            if ends_copies and settings.files.path is None:  # else others may be copying
                await server.end_copies()
            if histories.shared is not None:
                note = MemberNote(version=__version__, secret=server.peers.secret_fingerprint)
                await histories.shared.join(note)
            ready(server)
            await server.run(listening.sockets)
    finally:
        # Everything is on disk, so a provider that does not close in time is abandoned.
        with anyio.move_on_after(_PROVIDERS_SECONDS_MAX, shield=True):
            for each in tuple(open_routers):
                await each.aclose()


def _services(
    settings: Settings, histories: Histories, parts: Parts, spawn: Spawn, *, need_tokens: bool
) -> Services:
    router, context, tools, mcp_servers = parts
    limits, reserve = settings.limits, settings.free_bytes_min
    kept_files = HistoryFiles(histories, settings)
    files = AttachmentFiles(settings.files.path or settings.data_dir / "files", source=kept_files)
    return Services(
        histories=histories,
        files=files,
        kept_files=kept_files,
        router=router,
        tools=tools,
        mcp_servers=mcp_servers,
        limits=limits,
        context=context,
        clock=histories.clock,
        new_session_id=new_session_id,
        new_entry_id=new_entry_id,
        spawn=spawn,
        slots=TurnSlots(
            turns_max=limits.turns_max,
            per_user_max=settings.turns_per_user_max,
            shared=histories.shared,
        ),
        quotas=Quotas(
            limits=limits,
            histories=histories,
            files=files.directory,
            need_tokens=need_tokens,
            free_bytes_min=FREE_BYTES_MIN if reserve is None else reserve,
        ),
        hooks=Hooks(settings.hooks, histories=histories, spawn=spawn),
        redacted_prompts=RedactedPrompts(
            settings.data_dir / "redacted.json", shared=histories.shared
        ),
        approvals=settings.approvals,
        sessions=settings.sessions,
        on_too_long=settings.on_too_long,
    )


def _server(
    settings: Settings,
    listening: Listening,
    services: Services,
    admission: Admission,
    open_routers: set[ProviderRouter],
) -> Server:
    wire_limits = _wire_limits(settings.limits, need_tokens=admission.need_tokens)
    session_manager = SessionManager(services)
    server = Server(
        settings=settings,
        wire_limits=wire_limits,
        tls=listening.tls,
        doors=listening.doors,
        open_routers=open_routers,
        http_url=next((door.url for door in listening.doors), None),
        services=services,
        session_manager=session_manager,
        watchers=Watchers(services, session_manager),
        admission=admission,
    )
    if settings.cluster.secret_file is not None:
        from nplt_server.relay import ClusterPeers  # only where servers relay

        server.peers = ClusterPeers(
            settings.cluster, wire_limits, services.spawn, is_tls=listening.tls is not None
        )
        services.kept_files.peers = server.peers
    return server


def _wire_limits(limits: Limits, *, need_tokens: bool) -> WireLimits:
    return WireLimits(
        frame_bytes_max=(
            limits.frame_bytes_before_token_max if need_tokens else FRAME_PAYLOAD_BYTES_MAX
        ),
        message_bytes_max=limits.message_bytes_max,
        json_depth_max=limits.json_depth_max,
        json_keys_max=limits.json_keys_max,
        message_seconds_max=limits.message_seconds_max,
        event_bytes_max=limits.event_bytes_max,
        write_seconds_max=limits.write_seconds_max,
    )


def banner(default_model: str, providers: Sequence[AnyProviderSettings]) -> str:
    """Returns the greeting: the version, the default model and, if no vendor is configured, how
    to add one."""
    who = f"nplt {__version__}: {default_model} answers"
    if not all(isinstance(each, OfflineSettings | LocalSettings) for each in providers):
        return f"{who}."
    what = "it only echoes what you say"
    local = {each.id: each for each in providers if isinstance(each, LocalSettings)}
    chosen = local.get(default_model.partition("/")[0])
    if chosen is not None:
        if chosen.path is not None:
            return f"{who}."
        what = "a very small model on this machine"
    return f"{who} ({what}; for others, {_HOW_TO_GET_MORE})."
