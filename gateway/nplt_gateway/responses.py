"""`/v1/responses`: a response is a turn of a conversation.

Every stored response can be read and resumed at any event, while it runs or later, not only those
that ran in the background. A request that names no conversation begins a new one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
from starlette.responses import Response
from starlette.routing import BaseRoute

from nplt_gateway.api_request import ApiRequest, api_route
from nplt_gateway.bodies import JsonResponse
from nplt_gateway.errors import ApiError, as_api_error
from nplt_gateway.request_bodies import ResponseBody
from nplt_gateway.response_builder import ResponseBuilder, after_number, items_of_prompt, page_of
from nplt_gateway.response_ids import ResponseId, response_id, session_id_of
from nplt_gateway.sse import EventStream, named_event
from nplt_gateway.turn_reader import Over, TurnPart, failure_of
from nplt_gateway.turns import StoredTurn, Turn, begin_turn, headers_of
from nplt_gateway.which_conversation import foreign_chat, named_conversation
from nplt_protocol import JsonObject, JsonValue, RequestError

_PARAMS: Final = {
    "options.schema": "text.format",
    "options.effort": "reasoning.effort",
    "options.output_tokens": "max_output_tokens",
    "options.temperature": "temperature",
    "options.top_p": "top_p",
    "options.tool_choice": "tool_choice",
    "options.parallel_tool_calls": "parallel_tool_calls",
    "text": "input",
    "results": "input",
    "session_id": "conversation",
    "after": "previous_response_id",
}
_STORED_PARAMS: Final = {"session_id": "response_id"}


# POST /v1/responses


async def create(call: ApiRequest) -> Response:
    body, digest = await call.body(ResponseBody)
    body.check()
    named = named_conversation(call, conversation=_session_id(body.conversation_id))
    after = None
    if named is None and body.previous_response_id is not None:
        after = _known(body.previous_response_id, param="previous_response_id")
    if named is None and after is None:
        named = foreign_chat(call, cache_key=body.prompt_cache_key)
    turn = await begin_turn(call, body, digest, named=named, after=after, records_unnamed=True)
    request: dict[str, JsonValue] = {
        "instructions": body.instructions,
        "previous_response_id": body.previous_response_id,
        "background": bool(body.background),
        "model": turn.model,
    }
    if not turn.session_id:
        request |= {"store": False, "conversation": None}
    seals = body.wants_sealed_reasoning and not turn.session_id  # else the record keeps it
    builder = ResponseBuilder(turn.response_id, request=request, seals_reasoning=seals)
    try:
        if body.background and not body.stream and turn.session_id:
            return await _as_it_is(turn, builder)
        first = await call.unless_gone(turn.next_parts())
        if body.stream:
            return EventStream(_events(turn, builder, first, after=-1), headers_of(turn))
        whole = await call.unless_gone(_whole(turn, builder, first))
        turn.finish()
        await turn.close()
        return JsonResponse(whole, headers=headers_of(turn))
    except BaseException:
        with anyio.CancelScope(shield=True):
            await turn.close()
        raise


def _session_id(conversation: str | None) -> str | None:
    """The id in `conv_…`. Any other text names a conversation that is not there."""
    if conversation is None:
        return None
    session_id = session_id_of(conversation)
    if session_id is None:
        missing = f"there is no conversation {conversation[:80]!r}"
        raise ApiError(404, missing, code="not_found", param="conversation")
    return session_id


def _known(text: str, *, param: str = "response_id") -> ResponseId:
    found = response_id(text)
    if found is None or not found.prompt_seq:  # 0: it was not recorded
        raise ApiError(404, f"there is no response {text[:100]!r}", code="not_found", param=param)
    return found


async def _events(
    turn: Turn, builder: ResponseBuilder, parts: Sequence[TurnPart], *, after: int
) -> AsyncGenerator[bytes, None]:
    """The events whose numbers are greater than `after`."""
    has_begun = False
    try:
        while True:
            events = [event for part in parts for event in builder.apply(part)]
            if not has_begun:  # the first part is the prompt, which the first events need
                events = [*builder.begin(), *events]
                has_begun = True
            shown = [new for event in events if (new := after_number(event, after)) is not None]
            if shown:
                yield b"".join(named_event(str(event["type"]), event) for event in shown)
            if builder.is_over:
                turn.finish()
                return
            parts = await turn.next_parts()
    except (ApiError, RequestError) as error:  # the head is sent
        report = as_api_error(error, _PARAMS).as_json()
        yield named_event("error", {"type": "error", "sequence_number": after + 1, **report})
    finally:
        with anyio.CancelScope(shield=True):
            await turn.close()


async def _whole(turn: Turn, builder: ResponseBuilder, parts: Sequence[TurnPart]) -> JsonObject:
    while True:
        for part in parts:
            for _ in builder.apply(part):
                pass
            if isinstance(part, Over):
                if part.finished.state == "failed":
                    raise failure_of(part.finished.error, part.finished.state)
                return builder.response()
        parts = await turn.next_parts()


async def _as_it_is(turn: Turn, builder: ResponseBuilder) -> Response:
    """Returns the response as it is now, without waiting for more."""
    for part in await turn.parts_so_far():
        for _ in builder.apply(part):
            pass
    builder.is_queued = turn.is_queued
    await turn.close()
    if builder.is_deleted:
        raise ApiError(404, "this response was deleted", code="not_found", param="response_id")
    return JsonResponse(builder.response(), headers=headers_of(turn))


# GET, DELETE and cancel


@asynccontextmanager
async def _stored(call: ApiRequest) -> AsyncIterator[StoredTurn]:
    """The turn that the request names. It is closed when the block ends."""
    turn = StoredTurn(call, _known(call.request.path_params["response_id"]))
    try:
        await turn.open()
        yield turn
    finally:
        with anyio.CancelScope(shield=True):
            await turn.close()


async def get(call: ApiRequest) -> Response:
    query = call.request.query_params
    after = _starting_after(query.get("starting_after"))
    if query.get("stream", "").lower() != "true":
        async with _stored(call) as turn:
            return await _as_it_is(turn, ResponseBuilder(turn.response_id))
    turn = StoredTurn(call, _known(call.request.path_params["response_id"]))
    try:
        await turn.open()
        await turn.stored_prompt()
        events = _events(
            turn, ResponseBuilder(turn.response_id), await turn.next_parts(), after=after
        )
        return EventStream(events, headers_of(turn))
    except BaseException:
        with anyio.CancelScope(shield=True):
            await turn.close()
        raise


def _starting_after(text: str | None) -> int:
    if text is None:
        return -1
    if not text.isdecimal():
        raise ApiError(
            400,
            "starting_after is the number of an event",
            code="invalid_value",
            param="starting_after",
        )
    return int(text)


async def cancel(call: ApiRequest) -> Response:
    async with _stored(call) as turn:
        builder = ResponseBuilder(turn.response_id)
        await turn.cancel()
        while not builder.is_over:
            for part in await turn.next_parts():
                for _ in builder.apply(part):
                    pass
        return JsonResponse(builder.response())


async def delete(call: ApiRequest) -> Response:
    async with _stored(call) as turn:
        await turn.delete()
        gone: JsonObject = {"id": str(turn.response_id), "object": "response", "deleted": True}
        return JsonResponse(gone)


async def input_items(call: ApiRequest) -> Response:
    async with _stored(call) as turn:
        return JsonResponse(page_of(items_of_prompt(await turn.stored_prompt(), turn.response_id)))


ROUTES: Final[tuple[BaseRoute, ...]] = (
    api_route("POST", "/v1/responses", create, _PARAMS),
    api_route("GET", "/v1/responses/{response_id}", get, _STORED_PARAMS),
    api_route("DELETE", "/v1/responses/{response_id}", delete, _STORED_PARAMS),
    api_route("POST", "/v1/responses/{response_id}/cancel", cancel, _STORED_PARAMS),
    api_route("GET", "/v1/responses/{response_id}/input_items", input_items, _STORED_PARAMS),
)
