"""Changes a conversation other than by prompts: settings, fork, import, compact.

Each change is an entry in the record and is announced to all subscribers. A fork or an import
either exists as a whole or does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from msgspec.structs import replace

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import (
    Cleared,
    EpochBegun,
    Imported,
    RolledBack,
    SessionCreated,
)
from nplt_server.conversations.conversation import Conversation, drafted_rollback
from nplt_server.conversations.refusals import release
from nplt_server.conversations.services import Services
from nplt_server.conversations.session_manager import SessionManager
from nplt_storage.attachments import end_copy, link_attachments
from nplt_storage.copying import NewFork
from nplt_storage.copying import fork as copy_beginning
from nplt_storage.entries import (
    UNSTAMPED,
    AttachmentEntry,
    ModelSwitchedEntry,
    RenamedEntry,
    RollbackEntry,
)
from nplt_storage.errors import BadEntry, ConversationExists
from nplt_storage.history import ConversationHistory
from nplt_storage.ids import is_session_id
from nplt_storage.maintenance.importing import import_source
from nplt_storage.maintenance.sources import InOneGo, NotAConversation, opened
from nplt_storage.store import KeepsFiles

_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that command a terminal, line ends among them."""


async def find_or_create(
    session_manager: SessionManager, wanted: str, user: str, *, history: str | None = None
) -> Conversation:
    """The conversation with that id or name. If there is none, one is created: a valid id becomes
    its id, any other text its name. Concurrent requests get the same conversation."""
    async with session_manager.alone_with(f"{user}/{wanted}"):  # no id has a slash in it
        session_id = await session_manager.lookup(wanted, user)
        if session_id is not None:
            return await session_manager.get(session_id, user)
        if is_session_id(wanted):
            try:
                return await session_manager.make(wanted, user, history)
            except RequestError:
                # Another server may have created it after the lookup.
                session_id = await session_manager.lookup(wanted, user)
                if session_id is None:
                    raise
                return await session_manager.get(session_id, user)
        name = checked_name(wanted)
        conversation = session_manager.new(user, history)
        await rename(conversation, name)
        return conversation


def checked_name(name: str) -> str:
    """Returns the name as one line of plain text, because other users' terminals show it."""
    line = _CONTROLS.sub(" ", name).strip()
    if not line:
        raise RequestError(ErrorCode.MALFORMED, "a name must not be blank", field="name")
    return line


async def rename(conversation: Conversation, name: str) -> None:
    await conversation.append_entry(RenamedEntry(name=name))
    conversation.announce("renamed", {"name": name})


async def switch_model(conversation: Conversation, model: str) -> str:
    """Takes effect with the next turn that starts. Returns the previous model."""
    checked = conversation.services.router.check(model)
    previous = conversation.model
    if checked != conversation.record.model:
        conversation.check_open()
        choice = ModelSwitchedEntry(model=checked, previous_model=previous)
        await conversation.record.choose(choice)
        conversation.announce("model", {"model": checked, "previous_model": previous})
    return previous


OPTIONS: Final = ("effort", "temperature", "output_tokens")


async def set_options(conversation: Conversation, changes: JsonObject) -> None:
    """Takes effect with the next call. `None` removes an option. Members other than `OPTIONS` are
    ignored."""
    options = dict(conversation.record.options)
    for name, value in changes.items():
        if value is None:
            options.pop(name, None)
        elif name in OPTIONS and isinstance(value, str | int | float):
            options[name] = value
    if options != conversation.record.options:
        conversation.check_open()
        await conversation.record.choose(ModelSwitchedEntry(model="", options=options))
        conversation.announce("options", {"options": {**options}})


async def clear(conversation: Conversation) -> Cleared:
    through = await conversation.clear_messages()
    return Cleared(session_id=conversation.session_id, cleared_through_seq=through)


async def unhide(conversation: Conversation, seq: int) -> None:
    """Shows models an entry again that was hidden because a provider refused it."""
    conversation.check_open()
    reason = "somebody wants models to be shown it"
    if not await release(conversation.record, seq, "unhidden", reason):
        message = f"entry {seq} is not hidden from models"
        raise RequestError(ErrorCode.NOT_FOUND, message, field="unhide")


async def roll_back(
    conversation: Conversation,
    to_seq: int = 0,
    *,
    turns: Sequence[str] = (),
    redo: bool = False,
) -> RolledBack:
    """Rolls back those turns, or without `turns` all entries after `to_seq`. `redo` reverts the
    last rollback instead."""

    def drafted(history: ConversationHistory, in_full: bool) -> RollbackEntry:
        if redo:
            return history.redo(in_full=in_full)
        if turns:
            return history.rollback_turns(list(dict.fromkeys(turns)), in_full=in_full)
        return history.rollback_to(to_seq, in_full=in_full)

    await conversation.queue.settle()
    async with conversation.record.exclusive():
        conversation.check_at_rest()
        try:
            draft = await drafted_rollback(conversation.record, drafted)
        except BadEntry as error:
            if not turns and not redo:
                raise
            field = "redo" if redo else "turns"
            raise RequestError(ErrorCode.NOT_FOUND, str(error), field=field) from error
        conversation.check_at_rest()
        entry = await conversation.append_entry(draft)
    return RolledBack(session_id=conversation.session_id, head_seq=entry.seq, turns=entry.turns)


_NAME_CHARACTERS_MAX: Final = 200
FORK_MARK: Final = " (fork)"
"""Ends the name of a fork that was given none."""


async def fork(  # noqa: PLR0913  what to copy, and what the copy is
    services: Services,
    session_manager: SessionManager,
    *,
    session_id: str,
    user: str,
    at_seq: int | None,
    name: str | None,
    ids: Sequence[str] = (),
) -> SessionCreated:
    """Copies a conversation's entries up to `at_seq`, and its files, into a new conversation, in
    one step. A deletion of the original waits for that. The copy gets the first of `ids`; if there
    is a conversation with one of them, that is the copy, made before."""
    async with session_manager.alone_with(session_id):
        for made_before in ids:
            if await session_manager.lookup(made_before, user) is not None:
                return SessionCreated(session_id=made_before, name=name or "")
        found = await session_manager.find(session_id, user)
        if found is None or not found.row.head_seq:
            raise RequestError(
                ErrorCode.NOT_FOUND,
                "there is nothing to copy yet: this conversation has no messages",
                field="session_id",
            )
        row, store, files = found.row, found.profile.store, services.files.directory
        at_seq = row.head_seq if at_seq is None else at_seq
        if not row.first_seq <= at_seq <= row.head_seq:
            raise RequestError(
                ErrorCode.NOT_FOUND, f"there is no entry {at_seq} to fork at", field="at_seq"
            )
        await services.quotas.check_conversations(user, await services.quotas.size_of(session_id))
        called = name or row.name[: _NAME_CHARACTERS_MAX - len(FORK_MARK)] + FORK_MARK
        new = NewFork(
            session_id=ids[0] if ids else services.new_session_id(),
            user=user,
            created_at=services.clock(),
            entry_id=services.new_entry_id(),
            name=RenamedEntry(id=services.new_entry_id(), name=called),
        )
        attached: list[AttachmentEntry] = []
        if isinstance(store, KeepsFiles):
            async for batch in store.entries(session_id, through=at_seq):
                attached += [entry for entry in batch if isinstance(entry, AttachmentEntry)]
        fetched = [each for each in attached if await services.files.has(session_id, each.file_id)]
        await copy_beginning(store, session_id, at_seq=at_seq, new=new, files=files)
        for each in fetched:
            path = services.files.path_of(new.session_id, each.file_id)
            await services.kept_files.keep(new.session_id, each.file_id, path, size=each.size)
        return SessionCreated(session_id=new.session_id, name=called)


async def copy_files(source: Conversation, target: Conversation, file_ids: Collection[str]) -> None:
    """Gives another conversation of the same user those files that it does not have."""
    held = {each.file_id for each in target.history.entries if isinstance(each, AttachmentEntry)}
    wanted = [
        entry
        for entry in source.history.entries
        if isinstance(entry, AttachmentEntry) and entry.file_id in file_ids
    ]
    entries = [entry for entry in wanted if entry.file_id not in held]
    if not entries:
        return
    directory = source.services.files.directory
    missing = await link_attachments(directory, source.session_id, target.session_id, entries)
    for entry in entries:
        if entry.file_id not in missing:
            await target.append_entry(replace(entry, seq=0, id="", timestamp=UNSTAMPED))
    end = partial(end_copy, directory, target.session_id, is_there=True)
    await anyio.to_thread.run_sync(end)


OVER_THE_WIRE: Final = InOneGo(bytes_max=4 * 1024 * 1024, values_max=400_000, messages_max=20_000)
"""Larger documents must be imported with the operator's command, in a process of its own."""


async def import_document(
    services: Services, session_manager: SessionManager, path: Path, *, user: str, field: str
) -> Imported:
    """Imports a conversation from one document, completely or not at all. For the local user, it
    keeps its id if that is free; for another user it is stored as if that user had chosen the id.
    Imports run one at a time, because another program's document is read into memory at once.
    `field`: the field of the request that an error names."""
    store = services.histories.default.store
    try:
        async with services.importing:
            size = (await anyio.Path(path).stat()).st_size
            await services.quotas.check_conversations(user, size)
            async with opened(path, OVER_THE_WIRE) as source:
                done = await import_source(
                    store,
                    source,
                    files=services.files.directory,
                    user=user,
                    new_id=services.new_session_id,
                    id_here=lambda named: session_manager.id_for_import(named, user),
                    is_taken_elsewhere=lambda session_id: session_manager.is_taken(
                        session_id, user
                    ),
                )
    except (NotAConversation, BadEntry) as error:
        raise RequestError(
            ErrorCode.MALFORMED, f"this can't be imported: {error}", field=field
        ) from None
    except ConversationExists:
        raise RequestError(
            ErrorCode.CONFLICT,
            "this conversation is being imported by another request; try again in a moment",
            retry_after=1.0,
        ) from None
    row = await store.row(done.session_id)
    return Imported(session_id=done.session_id, messages=row.message_count if row else 0)


async def compact(conversation: Conversation) -> EpochBegun:
    """Begins a new epoch on request. If there is a summarizer, its summary is awaited first. Called
    between turns. Refuses if the context would not become shorter."""
    context = conversation.context
    await context.ready()
    call_budget = context.call_budget(conversation.model)
    before = (await context.view(None, call_budget)).tokens
    if not conversation.history.shown_turns:
        raise RequestError(ErrorCode.CONFLICT, "there is nothing to compact here yet")
    draft = await context.draft_epoch("asked", call_budget)
    compaction = await conversation.summarizer.finish(draft)
    if compaction is None:
        after = (await context.view(None, call_budget, epoch=draft)).tokens
        if after >= before:
            raise RequestError(
                ErrorCode.CONFLICT,
                f"compacting would not make the context shorter: its {before:,} tokens would be "
                f"{after:,}",
            )
    epoch = await context.begin_epoch_for("asked", call_budget)
    return EpochBegun(
        session_id=conversation.session_id,
        epoch=epoch.seq,
        reason=epoch.reason,
        tokens_before=before,
        tokens_after=(await context.view(None, call_budget)).tokens,
        compaction=compaction.seq if compaction is not None else None,
    )
