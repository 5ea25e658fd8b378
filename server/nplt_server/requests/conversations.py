"""Handles requests about conversations as a whole: enter, list, create, change, search.

ATTACH, DETACH, SESSION_LIST, SESSION_SWITCH, SESSION_NEW, SESSION_DELETE, SESSION_UPDATE,
SESSION_FORK, SEARCH, IMPORT, REDACT, REPAIR.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import orjson
from msgspec.structs import replace

from nplt_protocol import ErrorCode, RequestError, messages
from nplt_server.connections.session import Session, client_of
from nplt_server.conversations import operations, redaction
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.operations import checked_name
from nplt_server.dialects import PendingReply
from nplt_server.errors import no_such_conversation, repair_command
from nplt_server.requests.files import path_of_upload
from nplt_storage.entries import ArchivedEntry, PinnedEntry
from nplt_storage.rows import BadCursor, ConversationRow, RowQuery, matches
from nplt_storage.search import SearchQuery
from nplt_storage.store import Repairable


async def as_row(session: Session, row: ConversationRow) -> messages.SessionRow:
    rows = await session.server.watchers.rows.shown([row], current_id=session.current_id)
    return rows[0]


async def _with_repair(session: Session, row: messages.SessionRow) -> messages.SessionRow:
    """The row, with the command that repairs the conversation if it is damaged."""
    if not row.damaged:
        return row
    found = await session.server.services.histories.find(row.session_id)
    if found is None or not isinstance(found.profile.store, Repairable):
        return row
    return replace(row, repair=repair_command(row.session_id))


async def update(session: Session, request: messages.SessionUpdate, pending: PendingReply) -> None:
    if request.deleted is False and request.session_id is not None:
        session_id = request.session_id  # conversations in the trash are found by id
    else:
        session_id = await session.id_of(request.session_id)
    name = checked_name(request.name) if request.name is not None else None
    if request.deleted is False:
        session_manager, user = session.server.session_manager, session.user
        try:
            await session_manager.find(
                session_id, user
            )  # a conversation outside the trash needs nothing
        except RequestError:
            session_id = await session_manager.find_in_trash(session_id, user)
            await session_manager.undelete(session_id, user)
    conversation = await session.find_conversation(session_id, to_change=True)
    if name is not None:
        await operations.rename(conversation, name)
    if request.system is not None:
        await conversation.set_system(request.system)
    if request.pinned is not None:
        await conversation.append_entry(PinnedEntry(pinned=request.pinned))
        conversation.announce("pinned", {"pinned": request.pinned})
    if request.archived is not None:
        await conversation.append_entry(ArchivedEntry(archived=request.archived))
        conversation.announce("archived", {"archived": request.archived})
    if request.unhide is not None:
        await operations.unhide(conversation, request.unhide)
    if request.release:
        await conversation.change_later("released")
    if conversation.row is None:
        raise no_such_conversation(session_id)
    pending.send(await as_row(session, conversation.row))


async def fork(session: Session, request: messages.SessionFork, pending: PendingReply) -> None:
    session_id = await session.id_of(request.session_id)
    name = checked_name(request.name) if request.name is not None else None
    created = await operations.fork(
        session.server.services,
        session.server.session_manager,
        session_id=session_id,
        user=session.user,
        at_seq=request.at_seq,
        name=name,
    )
    pending.send(created)


async def import_(session: Session, request: messages.Import, pending: PendingReply) -> None:
    server, user = session.server, session.user
    if request.file_id is not None:
        path = await path_of_upload(session, request.file_id)
        try:
            done = await operations.import_document(
                server.services, server.session_manager, path, user=user, field="file_id"
            )
        finally:
            with anyio.CancelScope(
                shield=True
            ):  # even if refused, an upload is for one import only
                await session.uploads.drop_import(request.file_id)
    elif request.document is not None:
        with tempfile.TemporaryDirectory(prefix="nplt-") as directory:
            path = Path(directory) / "document.json"
            await anyio.to_thread.run_sync(path.write_bytes, orjson.dumps(request.document))
            done = await operations.import_document(
                server.services, server.session_manager, path, user=user, field="document"
            )
    else:
        raise RequestError(
            ErrorCode.MALFORMED, "say what to import: file_id or document", field="document"
        )
    pending.send(done)


async def redact(session: Session, request: messages.Redact, pending: PendingReply) -> None:
    conversation = await session.find_conversation(request.session_id, to_change=True)
    await conversation.queue.settle()
    redaction.check_redactable(conversation.history, request.seq)
    services = conversation.services

    async def find_copies(erased: redaction.Erased) -> None:
        pending.send(await redaction.find_copies(services, erased))

    conversation.add_job(
        partial(redaction.redact, conversation, request.seq),
        # Turns go on while copies are searched for.
        done=lambda erased: services.spawn(partial(find_copies, erased)),
        failed=lambda error: session.refuse(pending, error),
    )


async def repair(session: Session, request: messages.Repair, pending: PendingReply) -> None:
    """Repairs a conversation, even one too damaged to be entered."""
    wanted, session_manager = request.session_id, session.server.session_manager
    if wanted is None:
        session_id = session.here().session_id
    else:
        session_id = await session_manager.resolve(wanted, session.user, by_prefix=True)
    pending.send(await session_manager.repair(session_id, session.user))


_LIST_ROWS_MAX = 200
_ROW_BYTES_MAX = 4_096


async def attach(session: Session, request: messages.Attach, pending: PendingReply) -> None:
    conversation = await session.find_conversation(
        request.session_id, create=request.create, history=request.history
    )
    _attach(session, conversation, pending, request)


async def switch(session: Session, request: messages.SessionSwitch, pending: PendingReply) -> None:
    conversation = await session.find_conversation(
        request.session_id, create=request.create, history=request.history, by_prefix=True
    )
    _attach(session, conversation, pending, None)


def _attach(
    session: Session,
    conversation: Conversation,
    pending: PendingReply,
    cursor: messages.Attach | None,
) -> None:
    """Attaches without a gap: the old conversation is left, the reply is sent, missed events are
    sent, the new conversation is entered. No event can come in between."""
    frames, resync = conversation.replay(cursor)
    session.depart()
    observer = cursor.observer if cursor else False
    snapshot = conversation.snapshot(client_of(session, observer=observer))
    pending.send(replace(snapshot, resync=True) if resync else snapshot)
    session.replay(frames)
    session.enter(conversation, observer=observer)
    conversation.record.profile.store.touch(
        conversation.session_id, session.server.services.clock()
    )


async def detach(session: Session, request: messages.Detach, pending: PendingReply) -> None:
    session.depart()
    pending.send(messages.Detached())


async def new(session: Session, request: messages.SessionNew, pending: PendingReply) -> None:
    model = session.server.services.router.check(request.model) if request.model else None
    name = checked_name(request.name) if request.name is not None else None
    await session.server.session_manager.make_room()
    conversation = await session.server.session_manager.create(session.user, request.history)
    if name is not None:
        await operations.rename(conversation, name)
    if request.system:
        await conversation.set_system(request.system)
    if model is not None:
        await operations.switch_model(conversation, model)
    session.depart()
    pending.send(
        messages.SessionCreated(
            session_id=conversation.session_id, name=conversation.name, model=conversation.model
        )
    )
    session.enter(conversation)


async def delete(session: Session, request: messages.SessionDelete, pending: PendingReply) -> None:
    session_id = await session.id_of(request.session_id)
    if session.current_id == session_id:
        session.check_may_speak()
    await session.server.session_manager.delete(session_id, session.user)
    current = session.conversation
    pending.send(
        messages.SessionDeleted(
            session_id=session_id,
            current_session_id=current.session_id if current else "",
            model=current.model if current else None,
        )
    )


def page_limit(session: Session, wanted: int) -> int:
    """The number of rows on a page. A row is at most a few hundred characters, so that a page fits
    any message limit."""
    bytes_max = session.server.services.limits.message_bytes_max
    return min(wanted, _LIST_ROWS_MAX, bytes_max // _ROW_BYTES_MAX)


async def list_sessions(
    session: Session, request: messages.SessionList, pending: PendingReply
) -> None:
    query = RowQuery(
        limit=page_limit(session, request.limit),
        cursor=request.cursor,
        archived=request.archived,
        name_has=request.query,
    )
    try:
        if request.trash:
            pending.send(await _trash(session, query))
            return
        page = await session.server.services.histories.list(session.user, query)
    except BadCursor:
        raise RequestError(
            ErrorCode.MALFORMED, "cursor must be a next_cursor of this list", field="cursor"
        ) from None
    shown = await session.server.watchers.rows.shown(page.rows, current_id=session.current_id)
    rows = [await _with_repair(session, row) for row in shown]
    pending.send(
        messages.SessionRows(
            sessions=tuple(rows), next_cursor=page.next_cursor, incomplete=page.incomplete
        )
    )


async def _trash(session: Session, query: RowQuery) -> messages.SessionRows:
    """A page of the trash. Its cursor is the deletion time and id of the last one shown."""
    wanted = replace(query, cursor=None, archived=None)
    is_first_page = query.cursor is None and query.name_has is None
    deleted = await session.server.services.histories.trash(
        session.user, limit=query.limit + 1 if is_first_page else None
    )
    matching = [each for each in deleted if matches(each.row, wanted)]
    if query.cursor is not None:
        at, _, session_id = query.cursor.partition(" ")
        try:
            last = datetime.fromisoformat(at).astimezone(UTC), session_id
        except (ValueError, OverflowError):
            raise BadCursor("a cursor is the next_cursor of this list") from None
        matching = [each for each in matching if (each.deleted_at, each.row.session_id) < last]
    page = matching[: query.limit]
    shown = await session.server.watchers.rows.shown([each.row for each in page])
    rows = (
        replace(row, deleted_at=each.deleted_at.isoformat())
        for row, each in zip(shown, page, strict=True)
    )
    cursor: str | None = None
    if page and len(matching) > len(page):
        cursor = f"{page[-1].deleted_at.isoformat()} {page[-1].row.session_id}"
    return messages.SessionRows(sessions=tuple(rows), next_cursor=cursor)


_HITS_MAX = 100
_HIT_BYTES_MAX = 4_096
_NAMES, _TEXTS = "n", "s"


async def search(session: Session, request: messages.Search, pending: PendingReply) -> None:
    """Finds names first, then messages, page by page. A cursor begins with `n` in the names and
    with `s` in the messages."""
    bytes_max = session.server.services.limits.message_bytes_max
    limit = min(request.limit, _HITS_MAX, bytes_max // _HIT_BYTES_MAX)
    try:
        page = await _page(session, request, limit)
    except BadCursor:
        raise RequestError(
            ErrorCode.MALFORMED, "cursor must be a next_cursor of this search", field="cursor"
        ) from None
    pending.send(page)


async def _page(session: Session, request: messages.Search, limit: int) -> messages.SearchHits:
    services, cursor = session.server.services, request.cursor or _NAMES
    part, place = cursor[:1], cursor[1:] or None
    hits: list[messages.SearchHit] = []
    incomplete = False
    if part == _NAMES:
        query = RowQuery(name_has=request.query.strip(), limit=limit, cursor=place)
        named = await services.histories.list(session.user, query)
        hits = [
            messages.SearchHit(
                session_id=row.session_id,
                name=row.name,
                seq=0,
                role="name",
                snippet=row.preview,
                timestamp=row.updated_at.isoformat(),
            )
            for row in named.rows
        ]
        incomplete, next_cursor = named.incomplete, None
        if named.next_cursor is not None:
            next_cursor = _NAMES + named.next_cursor
        elif len(hits) == limit:
            next_cursor = _TEXTS
        if next_cursor is not None:
            return messages.SearchHits(
                hits=tuple(hits), next_cursor=next_cursor, incomplete=incomplete
            )
        place = None
    elif part != _TEXTS:
        raise BadCursor("a cursor of a search begins with n or s")
    found = await services.histories.search(
        session.user,
        SearchQuery(
            text=request.query,
            limit=limit - len(hits),
            cursor=place,
            seconds_max=services.limits.search_seconds_max,
        ),
    )
    hits += [
        messages.SearchHit(
            session_id=hit.session_id,
            name=hit.name,
            seq=hit.seq,
            role=hit.role,
            snippet=hit.snippet,
            timestamp=hit.timestamp.isoformat(),
        )
        for hit in found.hits
    ]
    return messages.SearchHits(
        hits=tuple(hits),
        next_cursor=None if found.next_cursor is None else _TEXTS + found.next_cursor,
        incomplete=incomplete or found.incomplete,
    )
