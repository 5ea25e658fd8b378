"""Handles HELLO, PING, CLIENT_NOTE and STATUS.

HELLO checks the token and replies with the limits; STATUS reports on storage and
providers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import anyio

from nplt_protocol import (
    FRAME_PAYLOAD_BYTES_MAX,
    PROTOCOL_VERSION,
    SPEC_VERSION,
    ErrorCode,
    JsonObject,
    RequestError,
)
from nplt_protocol.messages import (
    LATER,
    REDACTED,
    WATCHING,
    ClientNote,
    Hello,
    Ping,
    Pong,
    Status,
    StatusRequest,
    Welcome,
)
from nplt_server import INSTANCE_ID, __version__
from nplt_server.connections.session import Peers, Session
from nplt_server.conversations.conversation import Conversation, FreshConversation
from nplt_server.conversations.services import ContextServices
from nplt_server.dialects import PendingReply
from nplt_server.histories import Histories
from nplt_server.providers.breaker import Breaker
from nplt_server.providers.router import ProviderRouter
from nplt_storage.errors import ConversationHeld, StorageUnavailable
from nplt_storage.rows import ConversationRow, RowQuery

_KEEPALIVE_SECONDS_MIN = 0.5
_COUNT_SECONDS_MAX = 1.0
_FEATURES = (REDACTED, WATCHING, LATER)

SERVER_NAME = f"nplt/{__version__}"


async def hello(session: Session, request: Hello, pending: PendingReply) -> None:
    if PROTOCOL_VERSION not in request.versions:
        pending.refuse(
            RequestError(
                ErrorCode.UNSUPPORTED,
                f"this server speaks protocol version {PROTOCOL_VERSION}; use a client that does",
                field="versions",
                details={"versions": [PROTOCOL_VERSION]},
            )
        )
        session.stream.close_soon()
        return
    if request.keepalive is not None and request.keepalive < _KEEPALIVE_SECONDS_MIN:
        raise RequestError(
            ErrorCode.MALFORMED,
            f"keepalive must be at least {_KEEPALIVE_SECONDS_MIN:g} s",
            field="keepalive",
        )
    if request.peer is not None:
        await session.server.peers.accept(session, request, pending)
        return
    admission = session.server.admission
    user = session.authenticate(request.token)
    if user is None:
        admission.log_refusal(session.address, "its token is not known")
        await anyio.sleep(admission.penalty_for(session.address))
        message = WRONG_TOKEN if request.token else NO_TOKEN
        pending.refuse(RequestError(ErrorCode.UNAUTHORIZED, message, field="token"))
        session.count_failed_hello()
        return
    if not admission.has_room_for(user):
        pending.refuse(
            RequestError(
                ErrorCode.BUSY,
                "you have too many connections; close one and try again",
                retry_after=10,
            )
        )
        session.stream.close_soon()
        return
    session.user = user  # from here on a reload that removes the token closes the session
    await _welcome(session, request, pending, user)


async def _welcome(session: Session, request: Hello, pending: PendingReply, user: str) -> None:
    limits = session.server.services.limits
    redacted: Sequence[str] = ()
    if REDACTED in request.features:
        redacted = await session.server.services.redacted_prompts.of(user)
    session.client_name = (request.client or "")[:200]

    def admit(session_id: str, model: str) -> None:
        session.is_authenticated = True
        session.keepalive = request.keepalive
        session.connection.frame_bytes_max = FRAME_PAYLOAD_BYTES_MAX
        session.connection.count_fragments_in(session.server.admission.unfinished_of_user[user])
        welcome = Welcome(
            version=PROTOCOL_VERSION,
            server=SERVER_NAME,
            user=user,
            session_id=session_id,
            model=model,
            models=session.server.services.router.models,
            limits={  # only those that a client can respect
                "frame_bytes_max": FRAME_PAYLOAD_BYTES_MAX,
                "message_bytes_max": limits.message_bytes_max,
                "file_bytes_max": limits.file_bytes_max,
                "waiting_prompts_max": limits.waiting_prompts_max,
                "history_page_max": 200,
            },
            instance=INSTANCE_ID,
            features=tuple(each for each in _FEATURES if each in request.features),
            redacted=tuple(redacted),
        )
        session.stream.send(session.connection.send_welcome(pending.seq, welcome))

    conversation: Conversation | FreshConversation
    if request.session_id is None and not request.create:
        conversation = session.server.session_manager.fresh(user, request.history)
    else:
        try:
            conversation = await session.find_conversation(
                request.session_id, create=request.create, history=request.history, by_prefix=True
            )
        except ConversationHeld as held:
            await session.use_relay().enter(held, admit)
            return
    admit(conversation.session_id, conversation.model)
    session.enter(conversation)


NO_TOKEN = "this server needs a token: set NPLT_TOKEN or NPLT_TOKEN_FILE"
WRONG_TOKEN = (
    "this server does not know the token it was given: check NPLT_TOKEN or NPLT_TOKEN_FILE, "
    "or have a new one made (nplt-server token NAME)"
)


async def ping(session: Session, request: Ping, pending: PendingReply) -> None:
    pending.send(Pong(data=request.data))


async def client_note(session: Session, request: ClientNote, pending: PendingReply) -> None:
    """Ignores the UDP port that a version 2 client sends. The request has no reply."""


def _storage(histories: Histories) -> JsonObject:
    """Describes the storage of each history: of the default one first, then `histories` with the
    others."""
    described: list[JsonObject] = []
    for profile in histories:
        store = profile.store
        one: JsonObject = {
            "history": profile.id,
            "backend": store.description.backend,
            "promise": store.description.promise,
        }
        if (reason := profile.read_only_reason) is not None:
            one["read_only"] = reason
        described.append(one)
    first, *others = described
    return {**first, "histories": [*described]} if others else first


def _providers(
    router: ProviderRouter, context: ContextServices, *, with_models: bool
) -> JsonObject:
    """The breaker of each provider, and the metrics of its models that have been called."""
    described: JsonObject = {}
    for provider, breaker in router.breakers.items():
        models: JsonObject = {
            name: route.metrics.as_json(context.models.facts(name).prices) | _breaker(route.breaker)
            for name, route in router.routes.items()
            if route.id == provider and (route.metrics.calls or route.metrics.failures)
        }
        described[provider] = {**_breaker(breaker), "models": models if with_models else {}}
    return described


def _breaker(breaker: Breaker) -> JsonObject:
    state: JsonObject = {"breaker": breaker.state}
    if breaker.state == "open":
        state["retry_after"] = round(breaker.seconds_left, 3)
    return state


async def _count(histories: Histories, user: str) -> tuple[int, Sequence[ConversationRow]] | None:
    try:
        stored = await histories.count(user)
        return stored, await histories.all_rows(user, RowQuery(troubled=True))
    except StorageUnavailable:
        return None


async def _stored(histories: Histories, user: str) -> JsonObject:
    """Counts the user's stored conversations, the damaged ones and those replaced by an older copy.
    The latter two are left out if they are 0. Empty while a store is unavailable or slow; `storage`
    says why. A shared store that is known to be away is asked, because that shows when it is back,
    but not waited for."""
    counting = asyncio.ensure_future(_count(histories, user))
    seconds_max = 0.0 if histories.is_shared_away else _COUNT_SECONDS_MAX
    done, _ = await asyncio.wait([counting], timeout=seconds_max)
    found = counting.result() if done else None
    if found is None:
        return {}
    stored, rows = found
    counted: JsonObject = {
        "damaged": sum(row.damaged for row in rows),
        "older_copies": sum(row.lost is not None for row in rows),
    }
    return {"stored": stored, **{name: count for name, count in counted.items() if count}}


def _cluster(histories: Histories, peers: Peers) -> JsonObject | None:
    """The servers that share a history, the oldest first, and what has happened to it. `None` if no
    history is shared. Does not wait for the store."""
    shared = histories.shared
    if shared is None:
        return None
    now, view, counts = shared.now().timestamp(), shared.view, shared.counts
    return {
        "member": shared.server_id,
        "members": [
            {
                "id": each.id,
                "address": each.address,
                "host": each.host,
                "pid": each.pid,
                "owned": each.owned,
                "uptime": round(max(0.0, now - each.started_at), 3),
                "version": each.version,
            }
            for each in view.members
        ],
        "problems": [*view.problems, *peers.problems],
        "counts": {
            "leases_lost": counts.leases_lost,
            "writes_fenced": counts.writes_fenced,
            "takeovers": counts.takeovers,
            "relays_failed": peers.relays_failed,
            "outages": counts.outages,
            "outage_seconds": round(counts.outage_seconds, 3),
            "journal_gaps_mended": counts.journal_gaps_mended,
        },
    }


async def status(session: Session, request: StatusRequest, pending: PendingReply) -> None:
    """Reports to an operator on all users' connections, turns and calls, and to other users on
    their own. The conversations are always those of the requesting user."""
    services, admission = session.server.services, session.server.admission
    is_operator = admission.is_operator(session.user)
    counted = [services.counters[session.user]]
    sessions = session.server.sessions
    connections = sum(each.user == session.user and each.is_authenticated for each in sessions)
    if is_operator:
        counted, connections = list(services.counters.values()), len(sessions)
    waits = services.slots.waiting([*services.counters] if is_operator else [session.user])
    finished: Counter[str] = Counter()
    for one in counted:
        finished.update(one.turns_by_state)
    mine = [each for each in session.server.session_manager if each.user == session.user]
    states = session.server.session_manager.states(session.user)
    peers = session.server.peers
    cluster = _cluster(services.histories, peers) if is_operator else None
    present: JsonObject | None = None
    if (here := session.conversation) is not None:
        present = {"session_id": here.session_id, "model": here.model}
        if here.options:
            present["options"] = {**here.options}
    pending.send(
        Status(
            server=SERVER_NAME,
            uptime=round(time.monotonic() - session.server.started_at, 3),
            connections=connections,
            conversations={
                "open": {
                    state: states[state] for state in ("running", "asking", "waiting", "idle")
                },
                **await _stored(services.histories, session.user),
            },
            turns={
                "started": sum(one.turns_started for one in counted),
                "finished": {**finished},
                "queued": sum(len(conversation.queue.waiting) for conversation in mine),
                **({"waiting_for_slot": {**waits}} if waits else {}),
            },
            storage=_storage(services.histories),
            versions={"protocol": PROTOCOL_VERSION, "spec": SPEC_VERSION, "server": __version__},
            providers=_providers(services.router, services.context, with_models=is_operator),
            mcp_servers=services.mcp_servers.described,
            cluster=cluster,
            conversation=present,
            http=session.server.http_url,
        )
    )
