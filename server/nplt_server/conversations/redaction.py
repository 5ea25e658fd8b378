"""Erases the content of an entry for good, and finds what else may hold it.

What can be erased at once is: the entry, the texts that a model made from it, its file, and the
clients' own lines (by the ids of prompts that they are told). What holds the same text elsewhere
is found and listed, so that its user can decide: answers, later prompts, tool results, forks,
imported copies. What no request reaches is named: providers, backups, exports.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Final

import anyio
from msgspec import Struct, field

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_text import JsonValue
from nplt_protocol.messages import Redacted, RedactedCopy, Remaining
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.operations import FORK_MARK
from nplt_server.conversations.record import ConversationRecord
from nplt_server.conversations.services import Services
from nplt_server.histories import FoundConversation
from nplt_storage.entries import (
    AttachmentEntry,
    CompactionEntry,
    Entry,
    FaultEntry,
    LaterPromptEntry,
    ModelInputEntry,
    ModelOutputEntry,
    RenamedEntry,
)
from nplt_storage.errors import BadEntry, StorageError
from nplt_storage.history import ConversationHistory
from nplt_storage.redaction import texts_of
from nplt_storage.rows import RowQuery
from nplt_storage.search import SearchQuery

SEARCH_SECONDS_MAX: Final = 5.0
"""How long copies are searched for; the reply says whether that was long enough."""
COPIES_MAX: Final = 200
_HITS_MAX: Final = 50
_IN_PROCESS: Final = ("offline", "local")
"""The providers that send nothing anywhere."""


class ErasedText(Struct, frozen=True):
    """The text to search for after an entry was erased: all of it, and the words in it that look
    like secrets, because an answer may repeat only those. It is never stored."""

    whole: str
    secrets: tuple[str, ...] = ()

    @classmethod
    def of(cls, entry: Entry) -> ErasedText:
        texts = [text.strip() for text in texts_of(entry) if text.strip()]
        found = (word.rstrip(".?!") for text in texts for word in re.findall(_WORD, text))
        words = dict.fromkeys(found)
        secrets = [word for word in words if _looks_secret(word)]
        return cls(max(texts, key=len, default=""), tuple(secrets[:_SECRETS_MAX]))

    def __bool__(self) -> bool:
        return bool(self.whole)

    @property
    def queries(self) -> tuple[str, ...]:
        """Search queries for the index; the conversations they find are read first."""
        return (*self.secrets, " ".join(self.whole.split()[:_QUERY_WORDS]))

    def is_in(self, entry: Entry) -> bool:
        texts = texts_of(entry)
        if isinstance(entry, RenamedEntry) and self._is_name_of_copy(entry.name):
            return True
        if any(secret in text for secret in self.secrets for text in texts):
            return True
        if len(self.whole) < _WHOLE_CHARACTERS_MIN:  # "yes" is in many texts, and no copy of ours
            return any(text.strip() == self.whole for text in texts)
        return any(self.whole in text for text in texts)

    def _is_name_of_copy(self, name: str) -> bool:
        """Whether it is what a fork is called: the first words of the text, perhaps cut."""
        beginning = name.removesuffix(FORK_MARK).rstrip("… ")
        is_long = len(beginning) >= _SECRET_CHARACTERS_MIN
        return is_long and " ".join(self.whole.split()).startswith(beginning)


_SECRETS_MAX: Final = 8
_QUERY_WORDS: Final = 12
_SECRET_CHARACTERS_MIN: Final = 8
_WHOLE_CHARACTERS_MIN: Final = 20
_WORD: Final = r"[^\s\"'`,;:()\[\]{}<>=]+"


def _looks_secret(word: str) -> bool:
    """Whether it is long and mixes letters with digits, as keys and passwords do."""
    return (
        len(word) >= _SECRET_CHARACTERS_MIN
        and any(map(str.isalpha, word))
        and any(map(str.isdigit, word))
    )


class Erased(Struct, frozen=True, kw_only=True):
    """The result of `redact`, and the text to search for now."""

    session_id: str
    user: str
    seqs: tuple[int, ...]
    message_ids: tuple[str, ...]
    text: ErasedText
    providers: tuple[str, ...]
    """The providers that were sent the text, or may have been."""


def check_redactable(history: ConversationHistory, seq: int) -> None:
    """Refuses to redact an entry of a turn that runs or waits, because the turn still needs it."""
    if not 1 <= seq <= history.head_seq:
        raise RequestError(ErrorCode.NOT_FOUND, f"there is no entry {seq} here", field="seq")
    entry = next(iter(history.entries_after(seq - 1) or ()), None)
    under_way = {prompt.turn_id for prompt in history.unfinished_turns()}
    if entry is not None and entry.turn_id in under_way:
        raise RequestError(
            ErrorCode.BUSY,
            "an answer is still running; cancel it or wait for its end, then try again",
            field="seq",
            retry_after=1.0,
        )


async def redact(conversation: Conversation, seq: int) -> Erased:
    """Erases an entry's text, wherever this server stores it. The record is rewritten with a
    tombstone in place of the entry, and read again. Texts that a model made from the entry are
    erased too: summaries that cover it, and a name. Called between turns."""
    record, services = conversation.record, conversation.services
    conversation.stop_summarizing()
    check_redactable(record.history, seq)
    found = await _find_repeats(record, seq)
    erased, derived = found.erased, found.derived
    for turn_id in found.turns_for_later:
        await conversation.cancel_later(turn_id, "its text was erased")
    message_ids: list[str] = []
    if isinstance(erased, ModelInputEntry | LaterPromptEntry) and erased.message_id is not None:
        message_ids = [erased.message_id]
    await services.redacted_prompts.add(record.user, message_ids)
    try:
        tombstone = await record.redact(seq)
    except BadEntry as error:
        raise RequestError(ErrorCode.MALFORMED, str(error), field="seq") from None
    for each in derived:
        await record.redact(each)
    if isinstance(tombstone, AttachmentEntry):
        await services.kept_files.drop(record.session_id, tombstone.file_id)
        await services.files.remove(record.session_id, tombstone.file_id)
    seqs: list[JsonValue] = [seq, *derived]
    ids: list[JsonValue] = [*message_ids]
    conversation.announce("redacted", {"seq": seq, "seqs": seqs, "message_ids": ids})
    is_shown = not isinstance(tombstone, RenamedEntry) and not record.is_stale
    active = reversed(conversation.history.active)
    if is_shown and any(isinstance(each, ModelOutputEntry) for each in active):
        # The earlier context contains the erased text, so a new epoch begins.
        context = conversation.context
        await context.ready()
        await context.begin_epoch_for("redaction", context.call_budget(conversation.model))
    return Erased(
        session_id=record.session_id,
        user=record.user,
        seqs=(seq, *derived),
        message_ids=tuple(message_ids),
        text=ErasedText.of(erased) if erased and erased.redacted_at is None else ErasedText(""),
        providers=tuple(one for one in found.providers if one not in _IN_PROCESS),
    )


class _Repeats(Struct, kw_only=True):
    erased: Entry | None = None
    derived: list[int]
    """The other entries that hold its text, or a text that a model made from it."""
    turns_for_later: list[str] = field(default_factory=list)
    """The turns of the prompts for later among them."""
    providers: dict[str, None] = field(default_factory=dict)
    """The providers that were called since."""


async def _find_repeats(record: ConversationRecord, seq: int) -> _Repeats:
    found = _Repeats(derived=await _earlier_forms(record, seq))
    sources = {seq, *found.derived}
    async for batch in record.profile.store.entries(record.session_id, after=min(sources) - 1):
        for entry in batch:
            found.erased = entry if entry.seq == seq else found.erased
            made_from = _made_from(entry)
            is_derived = entry.seq in sources or any(each in made_from for each in sources)
            if is_derived and entry.redacted_at is None:
                if entry.seq not in sources:
                    found.derived.append(entry.seq)
                if isinstance(entry, ModelInputEntry | LaterPromptEntry):
                    sources.add(entry.seq)
                if isinstance(entry, LaterPromptEntry):
                    found.turns_for_later.append(entry.turn_id or "")
            if isinstance(entry, ModelOutputEntry | FaultEntry | CompactionEntry):
                called = entry.invocation
                found.providers |= {} if called is None else {called.provider: None}
    return found


async def _earlier_forms(record: ConversationRecord, seq: int) -> list[int]:
    """The entries that stored the same prompt before, the newest first."""
    earlier: list[int] = []
    before: int | None = seq
    while before is not None:
        async for batch in record.profile.store.entries(
            record.session_id, after=before - 1, through=before
        ):
            before = next(map(_stored_before, batch), None)
            break
        else:
            break
        if before is not None:
            earlier.append(before)
    return earlier


def _stored_before(entry: Entry) -> int | None:
    """The entry that stored the same prompt before, if it was for later or put off."""
    match entry:
        case ModelInputEntry():
            return entry.later_seq
        case LaterPromptEntry():
            return entry.limited_seq
        case _:
            return None


def _made_from(entry: Entry) -> range:
    """The entries from which a model made this one, if it is a summary or a name; of a prompt that
    was for later or put off, the entry that stored it before."""
    if isinstance(entry, CompactionEntry):
        return range(entry.from_seq, entry.through_seq + 1)
    if (before := _stored_before(entry)) is not None:
        return range(before, before + 1)
    if isinstance(entry, RenamedEntry) and entry.metadata.get("automatic") is True:
        first, last = entry.metadata.get("from_seq"), entry.metadata.get("through_seq")
        if isinstance(first, int) and isinstance(last, int):
            return range(first, last + 1)
    return range(0)


# ------------------------------------------------------------------------------
# Copies elsewhere


async def find_copies(services: Services, erased: Erased) -> Redacted:
    """Looks for the erased text in all conversations of its user: first in the same one, then in
    those that the index names, then in all others, the newest first."""
    copies: list[RedactedCopy] = []
    searched_all = not erased.text
    if erased.text:
        with anyio.move_on_after(SEARCH_SECONDS_MAX):
            searched_all = await _search(services, erased, copies)
    return Redacted(
        seq=erased.seqs[0],
        seqs=erased.seqs,
        message_ids=erased.message_ids,
        copies=tuple(copies),
        searched_all=searched_all,
        remains=tuple(await _remaining(services, erased)),
    )


async def _search(services: Services, erased: Erased, copies: list[RedactedCopy]) -> bool:
    """Adds what is found to `copies`. Returns whether all of it was found."""
    is_all = True
    try:
        async for found in _conversations(services, erased):
            try:
                async for entry in _holding(erased, found):
                    if len(copies) == COPIES_MAX:
                        return False
                    copies.append(
                        RedactedCopy(
                            session_id=found.row.session_id,
                            name=found.row.name,
                            seq=entry.seq,
                            kind=entry.kind,
                        )
                    )
            except StorageError:  # a damaged one has to be repaired first
                is_all = False
    except StorageError:
        return False
    return is_all


async def _conversations(services: Services, erased: Erased) -> AsyncIterator[FoundConversation]:
    seen: set[str] = set()
    async for session_id in _session_ids(services, erased):
        if session_id in seen:
            continue
        seen.add(session_id)
        found = await services.histories.find(session_id)
        if found is not None and found.row.user == erased.user:
            yield found


async def _session_ids(services: Services, erased: Erased) -> AsyncIterator[str]:
    yield erased.session_id
    for text in erased.text.queries:
        try:
            page = await services.histories.search(
                erased.user, SearchQuery(text=text, limit=_HITS_MAX)
            )
        except StorageError:  # an index that does not answer only orders what follows
            break
        for hit in page.hits:
            yield hit.session_id
    for archived in (False, True):
        rows = services.histories.rows(erased.user, RowQuery(archived=archived))
        # Not the rows: reading the conversations takes seconds, and rows take much more memory.
        for session_id in [row.session_id async for row in rows]:
            yield session_id


async def _holding(erased: Erased, found: FoundConversation) -> AsyncIterator[Entry]:
    session_id = found.row.session_id
    mine = erased.seqs if session_id == erased.session_id else ()
    async for batch in found.profile.store.entries(session_id):
        for entry in batch:
            is_here = entry.seq in mine or entry.redacted_at is not None
            if not is_here and erased.text.is_in(entry):
                yield entry


async def _remaining(services: Services, erased: Erased) -> Sequence[Remaining]:
    remaining: list[Remaining] = []
    if erased.providers:
        names = ", ".join(erased.providers)
        remaining.append(
            Remaining(
                what="providers",
                names=erased.providers,
                message=f"what was sent to {names}, which may keep it for a while",
            )
        )
    try:
        has_trash = bool(await services.histories.trash(erased.user, limit=1))
    except StorageError:
        has_trash = True
    if has_trash:
        remaining.append(
            Remaining(what="trash", message="copies in conversations that are in the trash")
        )
    remaining.append(Remaining(what="backups", message="backups of the data directory"))
    remaining.append(
        Remaining(what="exports", message="exported files, and what terminals and shells show")
    )
    return remaining
