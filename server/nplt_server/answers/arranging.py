"""SESSION_UPDATE, SESSION_FORK, IMPORT, REDACT: what becomes of whole conversations, and
of words that should never have been in one."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import anyio
import anyio.to_thread
import orjson

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.requests import Import, Redact, SessionFork, SessionUpdate
from nplt_server.answers.files import path_of_upload
from nplt_server.answers.rows import as_row
from nplt_server.connections.premises import Premises
from nplt_server.connections.session import Session
from nplt_server.conversations import changes
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.forking import fork as fork_conversation
from nplt_server.conversations.importing import import_document
from nplt_server.conversations.redacting import check_redactable
from nplt_server.conversations.redacting import redact as erase
from nplt_server.errors import no_such_conversation
from nplt_server.presenters.base import Answer
from nplt_server.presenters.markup import without_controls


async def update(
    premises: Premises, session: Session, request: SessionUpdate, answer: Answer
) -> None:
    session_id = request.session_id or session.here().session_id
    name = checked_name(request.name) if request.name is not None else None
    if request.deleted is False:
        await _bring_back(premises, session, session_id)
    conversation = await premises.registry.get(session_id, session.user)
    if conversation is session.conversation:
        session.check_may_speak()
    if name is not None:
        await changes.rename(conversation, name)
    if request.system is not None:
        await changes.set_system(conversation, request.system)
    if request.pinned is not None:
        await changes.pin(conversation, request.pinned)
    if request.archived is not None:
        await changes.archive(conversation, request.archived)
    if conversation.row is None:
        raise no_such_conversation(session_id)
    answer.give(as_row(premises, session, conversation.row))


async def _bring_back(premises: Premises, session: Session, session_id: str) -> None:
    try:
        await premises.registry.find(session_id, session.user)
    except RequestError:
        await premises.registry.undelete(session_id, session.user)


async def fork(premises: Premises, session: Session, request: SessionFork, answer: Answer) -> None:
    session_id = request.session_id or session.here().session_id
    name = checked_name(request.name) if request.name is not None else None
    created = await fork_conversation(
        premises.household,
        premises.registry,
        session_id=session_id,
        user=session.user,
        at_seq=request.at_seq,
        name=name,
    )
    answer.give(created)


async def import_(premises: Premises, session: Session, request: Import, answer: Answer) -> None:
    house, registry, user = premises.household, premises.registry, session.user
    if request.file_id is not None:
        path = await path_of_upload(premises, session, request.file_id)
        try:
            done = await import_document(house, registry, path, user=user, field="file_id")
        finally:
            with anyio.CancelScope(shield=True):  # refused or not, it was for this one time
                await session.uploads.drop_import(request.file_id)
    elif request.document is not None:
        with tempfile.TemporaryDirectory(prefix="nplt-") as directory:
            path = Path(directory) / "document.json"
            await anyio.to_thread.run_sync(path.write_bytes, orjson.dumps(request.document))
            done = await import_document(house, registry, path, user=user, field="document")
    else:
        raise RequestError(
            ErrorCode.MALFORMED, "say what to import: file_id or document", field="document"
        )
    answer.give(done)


async def redact(premises: Premises, session: Session, request: Redact, answer: Answer) -> None:
    conversation = await _meant(premises, session, request.session_id)
    check_redactable(conversation.history, request.seq)
    conversation.queue(
        lambda: erase(
            request.seq,
            mind=conversation.mind,
            household=premises.household,
            announce=conversation.announce,
        ),
        done=answer.give,
        failed=lambda error: session.refuse(answer, error),
    )


async def _meant(premises: Premises, session: Session, session_id: str | None) -> Conversation:
    if session_id is None:
        conversation = session.here()
    else:
        conversation = await premises.registry.get(session_id, session.user)
    if conversation is session.conversation:
        session.check_may_speak()
    return conversation


def checked_name(name: str) -> str:
    """In one line, and nothing but text: others' terminals show it."""
    line = re.sub(r"[\n\t]", " ", without_controls(name)).strip()
    if not line:
        raise RequestError(ErrorCode.MALFORMED, "a name must not be blank", field="name")
    return line
