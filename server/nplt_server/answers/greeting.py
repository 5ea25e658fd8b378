"""HELLO, PING, STATUS: who is there, and how is it going."""

from __future__ import annotations

import anyio

from nplt_protocol import PROTOCOL_VERSION, SPEC_VERSION
from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_protocol.limits import FRAME_PAYLOAD_BYTES_MAX
from nplt_protocol.replies import Pong, Status, Welcome
from nplt_protocol.requests import ClientNote, Hello, Ping, StatusRequest
from nplt_server import __version__
from nplt_server.connections.premises import Premises
from nplt_server.connections.session import Session
from nplt_server.conversations.library import Library
from nplt_server.conversations.thinking import Thinking
from nplt_server.presenters.base import Answer
from nplt_server.providers.router import ProviderRouter

_KEEPALIVE_SECONDS_MIN = 0.5

SERVER_NAME = f"nplt/{__version__}"


async def hello(premises: Premises, session: Session, request: Hello, answer: Answer) -> None:
    if PROTOCOL_VERSION not in request.versions:
        answer.refuse(
            RequestError(
                ErrorCode.UNSUPPORTED,
                f"this server speaks version {PROTOCOL_VERSION} after HELLO",
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
    user = premises.front_desk.users.authenticate(request.token)
    if user is None:
        await _refuse_token(premises, session, answer)
        return
    if not premises.front_desk.has_room_for(user):
        answer.refuse(RequestError(ErrorCode.BUSY, "you have too many connections", retry_after=10))
        session.stream.close_soon()
        return
    _welcome(premises, session, request, answer, user)


def _welcome(
    premises: Premises, session: Session, request: Hello, answer: Answer, user: str
) -> None:
    session.is_welcome = True
    session.user = user
    session.client_name = (request.client or "")[:200]
    session.keepalive = request.keepalive
    session.connection.frame_bytes_max = FRAME_PAYLOAD_BYTES_MAX
    conversation = premises.registry.fresh(user)
    router = premises.household.router
    session.stream.send(
        session.connection.send_welcome(
            answer.seq,
            Welcome(
                version=PROTOCOL_VERSION,
                server=SERVER_NAME,
                user=user,
                session_id=conversation.session_id,
                model=conversation.model,
                models=router.models,
                limits=premises.limits_as_json,
            ),
        )
    )
    session.enter(conversation)


async def _refuse_token(premises: Premises, session: Session, answer: Answer) -> None:
    desk = premises.front_desk
    await anyio.sleep(desk.penalty_for(session.address))
    answer.refuse(
        RequestError(ErrorCode.UNAUTHORIZED, "this token is not known here", field="token")
    )
    session.count_failed_hello()


async def ping(premises: Premises, session: Session, request: Ping, answer: Answer) -> None:
    answer.give(Pong(data=request.data))


async def client_note(
    premises: Premises, session: Session, request: ClientNote, answer: Answer
) -> None:
    """A version 2 client tells its UDP port. There is nothing to say to that."""


def _storage(library: Library) -> JsonObject:
    """The promise that holds where fresh conversations go, and of the others."""
    described: list[JsonValue] = []
    for profile in library:
        store = profile.store
        one: JsonObject = {
            "history": profile.id,
            "backend": store.description.backend,
            "promise": store.description.promise,
        }
        if store.read_only_reason is not None:
            one["read_only"] = store.read_only_reason
        described.append(one)
    first = described[0]
    assert isinstance(first, dict)
    return {**first, "histories": described} if len(described) > 1 else first


def _providers(router: ProviderRouter, thinking: Thinking) -> JsonObject:
    """How each is, and what became of the calls of those models that were called."""
    described: JsonObject = {}
    for provider, breaker in router.breakers.items():
        models: JsonObject = {
            name: line.metrics.as_json(thinking.facts(name).prices)
            for name, line in router.lines
            if line.id == provider and (line.metrics.calls or line.metrics.failures)
        }
        one: JsonObject = {"breaker": breaker.state, "models": models}
        if breaker.state == "open":
            one["retry_after"] = round(breaker.seconds_left, 3)
        described[provider] = one
    return described


async def status(
    premises: Premises, session: Session, request: StatusRequest, answer: Answer
) -> None:
    house = premises.household
    states: JsonObject = {"running": 0, "waiting": 0, "idle": 0}
    queued = 0
    for conversation in premises.registry:
        if conversation.user == session.user:
            count = states[conversation.state]
            assert isinstance(count, int)
            states[conversation.state] = count + 1
            queued += conversation.prompts_waiting
    answer.give(
        Status(
            server=SERVER_NAME,
            uptime=round(premises.uptime(), 3),
            connections=len(premises.front_desk),
            conversations={
                "stored": await house.library.count(session.user),
                "open": states,
            },
            turns={
                "started": house.counters.turns_started,
                "finished": {**house.counters.turns_finished},
                "queued": queued,
            },
            storage=_storage(house.library),
            versions={
                "protocol": PROTOCOL_VERSION,
                "spec": SPEC_VERSION,
                "server": __version__,
            },
            providers=_providers(house.router, house.thinking),
        )
    )
