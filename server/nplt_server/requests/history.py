"""Handles requests that read a conversation: its history, context, usage and tools.

HISTORY_REQUEST, CONTEXT_REQUEST, USAGE, TOOLS. The storage cuts the pages
(`nplt_storage.pages`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import convert, to_builtins
from msgspec.structs import replace

from nplt_protocol import FRAME_PAYLOAD_BYTES_MAX, ErrorCode, JsonObject, RequestError, messages
from nplt_server.connections.session import Session
from nplt_server.conversations.context_report import context_report, sent_context_report
from nplt_server.dialects import BRACKET_BYTES_MAX, PendingReply
from nplt_server.histories import FoundConversation
from nplt_storage.active_entries import ActiveEntries, is_in
from nplt_storage.entries import ClearEntry, QuarantineEntry
from nplt_storage.pages import MessagePage, PageQuery
from nplt_storage.rows import NEW_NAME

_PAGE_MESSAGES_MAX = 200
_PAGE_BYTES_MIN = 4_096
"""A smaller page could not hold a message, even a cut one."""
_ENVELOPE_BYTES = 2_048
"""Reserved for the other fields of a page: id, name, edges."""
_MARK_BYTES = 16
"""The bytes of `,"cleared":true`."""
_RANGE_CHARACTERS_MAX = 10_000
"""A range of this length fits one frame, whatever its characters."""


async def history(
    session: Session, request: messages.HistoryRequest, pending: PendingReply
) -> None:
    session_id = await session.id_of(request.session_id)
    found = await session.server.session_manager.find(session_id, session.user)
    if request.seq is not None:
        pending.send(await _message_range(found, session_id, request))
        return
    if found is None:
        cursor = request.before or request.after or request.around or 0
        page = MessagePage(
            messages=(), has_more_before=False, has_more_after=False, before=cursor, after=cursor
        )
    else:
        asked = FRAME_PAYLOAD_BYTES_MAX
        if request.max_bytes is not None:
            asked = max(request.max_bytes, _PAGE_BYTES_MIN)
        cleared_through = await _cleared_through(found)
        hidden = await _hidden(session, found) if request.view == "messages" else {}
        server_bytes_max = session.server.services.limits.message_bytes_max
        bytes_max = min(asked, server_bytes_max, pending.bytes_max or asked)
        limit = min(request.limit, _PAGE_MESSAGES_MAX)
        reserved = _ENVELOPE_BYTES + (_MARK_BYTES * limit if cleared_through else 0)
        longest = sorted(map(len, hidden.values()))[-limit:]
        reserved += sum(_MARK_BYTES + 4 * length for length in longest)
        query = PageQuery(
            before=request.before,
            after=request.after,
            around=request.around,
            limit=limit,
            bytes_max=max(1_024, bytes_max - reserved),
            roles=request.roles or ("user", "assistant"),
            view=request.view,
            order=request.order,
            detail=request.detail,
            bracket_bytes=BRACKET_BYTES_MAX,
        )
        with found.profile.explained():
            page = await found.profile.store.page(session_id, query)
        if cleared_through and request.view == "messages":
            page = replace(page, messages=tuple(_marked(page.messages, cleared_through)))
        if hidden:
            page = replace(page, messages=tuple(_with_hidden(page.messages, hidden)))
        found = await session.server.session_manager.find(session_id, session.user) or found
    row, here = found.row if found else None, session.conversation
    chosen = row.model if row else None
    if here is not None and here.session_id == session_id:
        chosen = here.model
    pending.send(
        messages.HistoryPage(
            session_id=session_id,
            name=row.name if row else NEW_NAME,
            message_count=row.message_count if row else 0,
            head_seq=row.head_seq if row else 0,
            messages=page.messages,
            page=messages.PageEdges(
                has_more_before=page.has_more_before,
                has_more_after=page.has_more_after,
                before=page.before,
                after=page.after,
            ),
            model=session.server.services.router.choose(chosen),
        )
    )


_SEARCHED_ENTRIES: Final = 50
"""How many entries before a summary are searched for a clear."""


async def _cleared_through(found: FoundConversation) -> int:
    """The last entry before the newest clear; 0 if nothing is cleared. The row names the newest
    clear or summary; a summary begins after the clear before it."""
    row, store = found.row, found.profile.store
    if not row.compaction_seq:
        return 0
    with found.profile.explained():
        query = PageQuery(after=row.compaction_seq - 1, limit=1, view="entries")
        for newest in (await store.page(row.session_id, query)).messages:
            if newest.get("kind") == ClearEntry.kind:
                return row.compaction_seq - 1
            first = newest.get("from_seq")
            if isinstance(first, int):
                query = PageQuery(before=first, limit=_SEARCHED_ENTRIES, view="entries")
                earlier = (await store.page(row.session_id, query)).messages
                clears = (each["seq"] for each in earlier if each.get("kind") == ClearEntry.kind)
                seqs = [
                    seq for seq in clears if isinstance(seq, int) and not is_in(row.hidden, seq)
                ]
                return max(seqs, default=1) - 1
    return 0


_NEWEST_SEARCHED: Final = PageQuery(view="entries", limit=60, bytes_max=1_000_000)
"""The entries that are searched for quarantines in a conversation that is not open."""


async def _hidden(session: Session, found: FoundConversation) -> dict[int, str]:
    """The providers from whose models each quarantined entry is hidden, by its seq."""
    row = found.row
    opened = session.server.session_manager.opened(row.session_id)
    if opened is not None:
        quarantines = opened.history.quarantines
    else:
        with found.profile.explained():
            newest = await found.profile.store.page(row.session_id, _NEWEST_SEARCHED)
        known = (each for each in newest.messages if each.get("kind") == QuarantineEntry.kind)
        entries = (convert(each, QuarantineEntry, strict=False) for each in known)
        quarantines = ActiveEntries(entries, row.hidden).quarantined
    return {seq: ", ".join(map(_of_quarantine, each)) for seq, each in quarantines.items()}


def _of_quarantine(entry: QuarantineEntry) -> str:
    return f"{entry.provider or 'all models'}{' (its pictures)' if entry.part else ''}"


def _with_hidden(messages: Iterable[JsonObject], hidden: Mapping[int, str]) -> Iterator[JsonObject]:
    for message in messages:
        seq = message["seq"]
        words = hidden.get(seq) if isinstance(seq, int) else None
        yield message if words is None else {**message, "hidden": words}


def _marked(messages: Iterable[JsonObject], cleared_through: int) -> Iterator[JsonObject]:
    """Marks the messages that models are no longer shown. A prompt that waited while the
    conversation was cleared, and was answered afterwards, is not one of them."""
    found = [(message["seq"], str(message.get("turn_id") or ""), message) for message in messages]
    later = {turn for seq, turn, _ in found if isinstance(seq, int) and seq > cleared_through}
    for seq, turn, message in found:
        is_cleared = isinstance(seq, int) and seq <= cleared_through
        is_cleared = is_cleared and (not turn or turn not in later)
        yield {**message, "cleared": True} if is_cleared else message


async def _message_range(
    found: FoundConversation | None, session_id: str, request: messages.HistoryRequest
) -> messages.MessageRange:
    assert request.seq is not None
    text = None
    if found is not None:
        with found.profile.explained():
            text = await found.profile.store.text_of(session_id, request.seq)
    if text is None:
        raise RequestError(
            ErrorCode.NOT_FOUND, f"there is no message {request.seq} here", field="seq"
        )
    asked = _RANGE_CHARACTERS_MAX if request.length is None else request.length
    length = min(asked, _RANGE_CHARACTERS_MAX)
    return messages.MessageRange(
        session_id=session_id,
        seq=request.seq,
        offset=request.offset,
        content=text[request.offset : request.offset + length],
        size=len(text),
    )


async def context(
    session: Session, request: messages.ContextRequest, pending: PendingReply
) -> None:
    conversation = await session.find_conversation(request.session_id)
    model = conversation.model
    if request.model is not None:
        model = session.server.services.router.check(request.model)
    bytes_max = session.server.services.limits.message_bytes_max
    if request.call is not None:
        if request.text is not None or request.model is not None:
            raise RequestError(
                ErrorCode.MALFORMED,
                "a call that was made has its own model and prompt; leave out text and model",
                field="call",
            )
        report = sent_context_report(conversation.context, seq=request.call, bytes_max=bytes_max)
    else:
        report = context_report(
            conversation.context, model=model, text=request.text, bytes_max=bytes_max
        )
    pending.send(await report)


async def usage(session: Session, request: messages.Usage, pending: PendingReply) -> None:
    conversation = await session.find_conversation(request.session_id)
    pending.send(await conversation.get_token_usage())


async def tools(session: Session, request: messages.Tools, pending: PendingReply) -> None:
    conversation = await session.find_conversation(request.session_id)
    services = session.server.services
    every = services.tools.every
    offered = {tool.name for tool in services.tools.offer.descriptions}
    asks = any(policy == "ask" for _, policy in every)
    remembered = await conversation.approvals.remembered() if asks else {}
    listed: list[JsonObject] = [
        {
            "name": tool.name,
            "description": tool.description,
            "schema": tool.parameters,
            "class": tool.tool_class,
            "policy": remembered.get(tool.name, policy) if policy == "ask" else policy,
            "offered": tool.name in offered,
        }
        for tool, policy in every
    ]
    servers: JsonObject = {
        name: {**server.described, "sources": [to_builtins(one) for one in server.sources]}
        for name, server in services.mcp_servers.by_name.items()
    }
    pending.send(
        messages.ToolList(
            session_id=conversation.session_id, tools=tuple(listed), mcp_servers=servers or None
        )
    )
