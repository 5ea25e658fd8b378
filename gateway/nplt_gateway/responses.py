"""`/v1/responses`: a response is a turn of a conversation.

Every stored response can be read and resumed at any event, while it runs or later, not only those
that ran in the background. A request that names no conversation begins a new one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

import anyio
from starlette.responses import Response
from starlette.routing import BaseRoute

from nplt_gateway.api_request import ApiRequest, api_route
from nplt_gateway.bodies import JsonResponse
from nplt_gateway.client_messages import ClientMessage, system_text
from nplt_gateway.errors import ApiError, as_api_error
from nplt_gateway.items import items_of_prompt
from nplt_gateway.recorded import NewPrompt, PromptedTurn, StoredTurn, failure_of
from nplt_gateway.response_body import ResponseBody
from nplt_gateway.response_builder import ResponseBuilder, after_number
from nplt_gateway.response_ids import ResponseId, response_id, session_id_of
from nplt_gateway.sse import EventStream, named_event
from nplt_gateway.turn_reader import Over, TurnPart
from nplt_gateway.unrecorded import UnrecordedAnswer, UnrecordedTurn
from nplt_gateway.which_conversation import (
    CONVERSATION_HEADER,
    RECORDED_HEADER,
    Named,
    foreign_chat,
    is_task,
    named_conversation,
    of_retries,
)
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
}


class _Turn(Protocol):
    async def next_parts(self) -> list[TurnPart]: ...

    def finish(self) -> None:
        """The client has all of it."""

    async def close(self) -> None: ...


# POST /v1/responses


async def create(call: ApiRequest) -> Response:
    body, digest = await call.body(ResponseBody)
    body.check()
    try:
        return await _create(call, body, digest)
    except RequestError as error:
        raise as_api_error(error, _PARAMS) from None


async def _create(call: ApiRequest, body: ResponseBody, digest: str) -> Response:
    messages = await call.compute(lambda: body.client_messages)
    named = named_conversation(call, conversation=_session_id(body.conversation_id))
    previous = None if named is not None else _previous(body)
    if named is None and previous is None:
        named = foreign_chat(call, cache_key=body.prompt_cache_key) or of_retries(call)
    await call.check_options(body.model, body.options)
    request: dict[str, JsonValue] = {
        "instructions": body.instructions,
        "previous_response_id": body.previous_response_id,
        "background": bool(body.background),
    }
    if not _is_recorded(call, body, messages):
        if previous is not None or body.conversation is not None:
            unstored = "what continues a conversation is stored; leave store out"
            raise ApiError(400, unstored, code="unsupported_value", param="store")
        return await _answer_unrecorded(call, body, messages, request)
    turn = PromptedTurn(call)
    try:
        await turn.open()
        repeated = await turn.find_repeated(named, digest)
        if previous is not None and not repeated:
            named = await _place_after(turn, previous)
        await turn.enter(named)
        receipt = await turn.prompt(
            NewPrompt(
                messages=messages,
                model=body.model,
                options=body.options,
                metadata=body.metadata or {},
                tools=body.client_tools,
                body_sha256=digest,
            )
        )
    except BaseException:
        with anyio.CancelScope(shield=True):
            await turn.close()
        raise
    made = ResponseId(
        prompt_seq=receipt.seq, turn_id=receipt.turn_id, session_id=receipt.session_id
    )
    builder = ResponseBuilder(made, request={**request, "model": receipt.model})
    head = {CONVERSATION_HEADER: receipt.session_id}
    if body.background and not body.stream:
        return await _as_it_is(turn, builder, head)
    return await _respond(call, turn, builder, head, streams=bool(body.stream))


async def _place_after(turn: PromptedTurn, previous: ResponseId) -> Named:
    try:
        return await turn.after(previous)
    except RequestError as error:
        raise as_api_error(error, {"session_id": "previous_response_id"}) from None


def _session_id(conversation: str | None) -> str | None:
    """The id in `conv_…`. Any other text names a conversation that is not there."""
    if conversation is None:
        return None
    session_id = session_id_of(conversation)
    if session_id is None:
        missing = f"there is no conversation {conversation[:80]!r}"
        raise ApiError(404, missing, code="not_found", param="conversation")
    return session_id


def _previous(body: ResponseBody) -> ResponseId | None:
    if body.previous_response_id is None:
        return None
    return _known(body.previous_response_id, param="previous_response_id")


def _known(text: str, *, param: str = "response_id") -> ResponseId:
    found = response_id(text)
    if found is None or not found.prompt_seq:  # 0: it was not recorded
        raise ApiError(404, f"there is no response {text[:100]!r}", code="not_found", param=param)
    return found


def _is_recorded(call: ApiRequest, body: ResponseBody, messages: Sequence[ClientMessage]) -> bool:
    if is_task(call, system_text(messages), has_tools=bool(body.tools)):
        return False
    return body.store is not False or call.server.settings.http.store_unstored


async def _answer_unrecorded(
    call: ApiRequest,
    body: ResponseBody,
    messages: Sequence[ClientMessage],
    request: dict[str, JsonValue],
) -> Response:
    answer = UnrecordedAnswer.of(
        call,
        messages,
        model=body.model,
        options=body.options,
        tools=body.client_tools,
    )
    now = datetime.now(UTC).isoformat()
    turn = UnrecordedTurn(answer, metadata=body.metadata or {}, created_at=now)
    made = ResponseId(prompt_seq=0, turn_id=answer.answer_id, session_id="unrecorded")
    builder = ResponseBuilder(made, request={**request, "store": False, "conversation": None})
    head = {RECORDED_HEADER: "false"}
    return await _respond(call, turn, builder, head, streams=bool(body.stream))


# Answering


async def _respond(
    call: ApiRequest, turn: _Turn, builder: ResponseBuilder, head: dict[str, str], *, streams: bool
) -> Response:
    try:
        first = await call.unless_gone(turn.next_parts())
        if streams:
            return EventStream(_events(turn, builder, first, after=-1), head)
        whole = await call.unless_gone(_whole(turn, builder, first))
        turn.finish()
        await turn.close()
        return JsonResponse(whole, headers=head)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await turn.close()
        raise


async def _events(
    turn: _Turn, builder: ResponseBuilder, parts: Sequence[TurnPart], *, after: int
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


async def _whole(turn: _Turn, builder: ResponseBuilder, parts: Sequence[TurnPart]) -> JsonObject:
    while True:
        for part in parts:
            for _ in builder.apply(part):
                pass
            if isinstance(part, Over):
                if part.finished.state == "failed":
                    raise failure_of(part.finished.error, part.finished.state)
                return builder.response()
        parts = await turn.next_parts()


async def _as_it_is(
    turn: PromptedTurn | StoredTurn, builder: ResponseBuilder, head: dict[str, str]
) -> Response:
    """Returns the response as it is now, without waiting for more."""
    try:
        for part in await turn.parts_so_far():
            for _ in builder.apply(part):
                pass
        builder.is_queued = turn.is_queued
    finally:
        with anyio.CancelScope(shield=True):
            await turn.close()
    if builder.is_deleted:
        raise ApiError(404, "this response was deleted", code="not_found", param="response_id")
    return JsonResponse(builder.response(), headers=head)


# GET, DELETE and cancel


async def get(call: ApiRequest) -> Response:
    wanted = _known(call.request.path_params["response_id"])
    query = call.request.query_params
    after = _starting_after(query.get("starting_after"))
    builder, turn = ResponseBuilder(wanted), StoredTurn(call, wanted)
    head = {CONVERSATION_HEADER: wanted.session_id}
    try:
        await turn.open()
        if query.get("stream", "").lower() != "true":
            return await _as_it_is(turn, builder, head)
        await turn.stored_prompt()
        return EventStream(_events(turn, builder, await turn.next_parts(), after=after), head)
    except RequestError as error:
        await turn.close()
        raise as_api_error(error, {"session_id": "response_id"}) from None


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
    wanted = _known(call.request.path_params["response_id"])
    builder, turn = ResponseBuilder(wanted), StoredTurn(call, wanted)
    try:
        await turn.open()
        await turn.cancel()
        return JsonResponse(await _until_over(turn, builder))
    except RequestError as error:
        raise as_api_error(error, {"session_id": "response_id"}) from None
    finally:
        with anyio.CancelScope(shield=True):
            await turn.close()


async def _until_over(turn: StoredTurn, builder: ResponseBuilder) -> JsonObject:
    while not builder.is_over:
        for part in await turn.next_parts():
            for _ in builder.apply(part):
                pass
    return builder.response()


async def delete(call: ApiRequest) -> Response:
    wanted = _known(call.request.path_params["response_id"])
    turn = StoredTurn(call, wanted)
    try:
        await turn.open()
        await turn.delete()
    except RequestError as error:
        raise as_api_error(error, {"session_id": "response_id"}) from None
    finally:
        with anyio.CancelScope(shield=True):
            await turn.close()
    return JsonResponse({"id": str(wanted), "object": "response", "deleted": True})


async def input_items(call: ApiRequest) -> Response:
    wanted = _known(call.request.path_params["response_id"])
    turn = StoredTurn(call, wanted)
    try:
        await turn.open()
        prompt = await turn.stored_prompt()
    except RequestError as error:
        raise as_api_error(error, {"session_id": "response_id"}) from None
    finally:
        with anyio.CancelScope(shield=True):
            await turn.close()
    items = items_of_prompt(prompt, wanted)
    return JsonResponse(
        {
            "object": "list",
            "data": [*items],
            "first_id": items[0]["id"] if items else None,
            "last_id": items[-1]["id"] if items else None,
            "has_more": False,
        }
    )


ROUTES: Final[tuple[BaseRoute, ...]] = (
    api_route("POST", "/v1/responses", create),
    api_route("GET", "/v1/responses/{response_id}", get),
    api_route("DELETE", "/v1/responses/{response_id}", delete),
    api_route("POST", "/v1/responses/{response_id}/cancel", cancel),
    api_route("GET", "/v1/responses/{response_id}/input_items", input_items),
)
