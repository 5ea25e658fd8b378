"""`/v1/conversations`: the conversations of this server, and their entries as items.

OpenAI's API can't list conversations, and neither can this one; the structured protocol can.
https://platform.openai.com/docs/api-reference/conversations
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import Field
from starlette.responses import Response
from starlette.routing import BaseRoute

from nplt_gateway.api_request import ApiRequest, api_route
from nplt_gateway.bodies import JsonResponse
from nplt_gateway.client_messages import AssistantMessage, ClientMessage, SystemText, UserMessage
from nplt_gateway.errors import ApiError
from nplt_gateway.request_bodies import InputItem, Shape, read_items, refused
from nplt_gateway.response_builder import items_of_turn, page_of
from nplt_gateway.response_ids import conversation_id, prompt_seq_of_item, session_id_of
from nplt_gateway.session_pipe import SessionPipe
from nplt_protocol import JsonObject, JsonValue
from nplt_protocol.messages import (
    HistoryPage,
    HistoryRequest,
    Import,
    Imported,
    SessionCreated,
    SessionDelete,
    SessionDeleted,
    SessionNew,
    SessionRow,
    SessionUpdate,
)

_ITEMS_MAX: Final = 1_000
_PAGE_ITEMS_MAX: Final = 100
_PAGE_MESSAGES: Final = 100
_PARAMS: Final = {"session_id": "conversation_id", "document": "items", "system": "items"}


class ConversationBody(Shape):
    items: Annotated[list[InputItem], Field(max_length=_ITEMS_MAX)] | None = None
    metadata: dict[str, Any] | None = None


def _session_id_in_path(call: ApiRequest) -> str:
    text = call.request.path_params["conversation_id"]
    session_id = session_id_of(text)
    if session_id is None:
        missing = f"there is no conversation {text[:100]!r}"
        raise ApiError(404, missing, code="not_found", param="conversation_id")
    return session_id


async def create(call: ApiRequest) -> Response:
    body, _ = await call.body(ConversationBody)
    if body.metadata:
        raise refused("metadata", "a conversation has none here; a response has")
    messages = list(read_items(body.items or (), "items"))
    async with call.session() as pipe:
        session_id = await _created(pipe, messages)
        row = await _row(pipe, session_id)
    return JsonResponse(_as_json(row))


async def _created(pipe: SessionPipe, messages: Sequence[ClientMessage]) -> str:
    """Creates the conversation and returns its id. Messages other than an instruction are imported
    as one document, so that the conversation has all of them or does not exist."""
    if all(isinstance(each, SystemText) for each in messages):
        system = "\n\n".join(each.text for each in messages if isinstance(each, SystemText))
        made = await pipe.ask(SessionNew(system=system or None), SessionCreated)
        return made.session_id
    lines: list[JsonValue] = []
    for message in messages:
        match message:
            case SystemText(text=text):
                lines.append({"role": "system", "content": text})
            case UserMessage(text=text, files=()):
                lines.append({"role": "user", "content": text})
            case AssistantMessage(text=text, calls=()):
                lines.append({"role": "assistant", "content": text})
            case _:
                raise refused("items", "a conversation begins with texts; send the rest in turns")
    done = await pipe.ask(Import(document={"messages": lines}), Imported)
    return done.session_id


async def get(call: ApiRequest) -> Response:
    async with call.session() as pipe:
        row = await _row(pipe, _session_id_in_path(call))
    return JsonResponse(_as_json(row))


async def delete(call: ApiRequest) -> Response:
    """Moves the conversation to the trash, from which `nplt undelete` brings it back."""
    session_id = _session_id_in_path(call)
    async with call.session() as pipe:
        await pipe.ask(SessionDelete(session_id=session_id), SessionDeleted)
    gone: JsonObject = {"id": conversation_id(session_id), "object": "conversation.deleted"}
    return JsonResponse({**gone, "deleted": True})


async def _row(pipe: SessionPipe, session_id: str) -> SessionRow:
    """The conversation's row, which is the reply to an update that changes nothing."""
    return await pipe.ask(SessionUpdate(session_id=session_id), SessionRow)


def _as_json(row: SessionRow) -> JsonObject:
    return {
        "id": conversation_id(row.session_id),
        "object": "conversation",
        "created_at": int(datetime.fromisoformat(row.created_at).timestamp()),
        "metadata": {},
    }


# Items


async def list_items(call: ApiRequest) -> Response:
    session_id, query = _session_id_in_path(call), call.request.query_params
    limit, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after")
    if not limit.isdecimal() or not 1 <= int(limit) <= _PAGE_ITEMS_MAX:
        raise refused("limit", f"it must be a number from 1 to {_PAGE_ITEMS_MAX}")
    if order not in ("asc", "desc"):
        raise refused("order", "it must be asc or desc")
    if after is not None and prompt_seq_of_item(after) is None:
        raise ApiError(404, f"there is no item {after[:100]!r}", code="not_found", param="after")
    async with call.session() as pipe:
        await _row(pipe, session_id)  # raises an error if there is no such conversation
        reader = _ItemReader(pipe, session_id, is_ascending=order == "asc")
        items, has_more = await reader.page(after, int(limit))
    return JsonResponse(page_of(items, has_more=has_more))


class _ItemReader:
    """Reads the items of a conversation turn by turn, without those that were rolled back."""

    def __init__(self, pipe: SessionPipe, session_id: str, *, is_ascending: bool) -> None:
        self._pipe = pipe
        self._session_id = session_id
        self._is_ascending = is_ascending

    async def page(self, after: str | None, limit: int) -> tuple[list[JsonObject], bool]:
        """The items after item `after`, and whether there are more."""
        items: list[JsonObject] = []
        async for item in self._items(after):
            if len(items) == limit:
                return items, True
            items.append(item)
        return items, False

    async def _items(self, after: str | None) -> AsyncIterator[JsonObject]:
        prompt_seq = None if after is None else prompt_seq_of_item(after)
        if prompt_seq is None:
            turns = self._turns_ascending(0) if self._is_ascending else self._turns_descending(None)
        elif self._is_ascending:
            turns = self._turns_ascending(prompt_seq - 1)
        else:  # the rest of the turn itself, then the turns before it
            async for messages in self._turns_ascending(prompt_seq - 1):
                in_turn = [*reversed(items_of_turn(messages, self._session_id))]
                for item in _after(in_turn, after):
                    yield item
                break
            turns, after = self._turns_descending(prompt_seq), None
        async for messages in turns:
            items = items_of_turn(messages, self._session_id)
            ordered = items if self._is_ascending else [*reversed(items)]
            for item in _after(ordered, after):
                yield item
            after = None

    async def _turns_ascending(self, cursor: int) -> AsyncIterator[list[JsonObject]]:
        """The messages of each turn, oldest first."""
        turn: list[JsonObject] = []
        while True:
            page = await self._page(after=cursor)
            for message in page.messages:
                if turn and message.get("turn_id") != turn[0].get("turn_id"):
                    yield turn
                    turn = []
                turn.append(message)
            if not page.page.has_more_after:
                break
            cursor = page.page.after
        if turn:
            yield turn

    async def _turns_descending(self, cursor: int | None) -> AsyncIterator[list[JsonObject]]:
        """The messages of each turn, newest turn first; in a turn, the oldest message first."""
        turn: list[JsonObject] = []
        while True:
            page = await self._page(before=cursor)
            for message in reversed(page.messages):
                if turn and message.get("turn_id") != turn[0].get("turn_id"):
                    yield turn
                    turn = []
                turn.insert(0, message)
            if not page.page.has_more_before:
                break
            cursor = page.page.before
        if turn:
            yield turn

    async def _page(self, *, after: int | None = None, before: int | None = None) -> HistoryPage:
        request = HistoryRequest(
            session_id=self._session_id,
            after=after,
            before=before,
            limit=_PAGE_MESSAGES,
            max_bytes=self._pipe.message_bytes_max,
        )
        return await self._pipe.ask(request, HistoryPage)


def _after(items: Sequence[JsonObject], item_id: str | None) -> Iterator[JsonObject]:
    """The items after item `item_id`; all items if it is not among them."""
    ids = [item["id"] for item in items]
    yield from items[ids.index(item_id) + 1 :] if item_id in ids else items


ROUTES: Final[tuple[BaseRoute, ...]] = (
    api_route("POST", "/v1/conversations", create, _PARAMS),
    api_route("GET", "/v1/conversations/{conversation_id}", get, _PARAMS),
    api_route("DELETE", "/v1/conversations/{conversation_id}", delete, _PARAMS),
    api_route("GET", "/v1/conversations/{conversation_id}/items", list_items, _PARAMS),
)
