"""Stores that break one promise each: what the rules must notice. Each rule is broken by one of
them at least; a store whose rules the others break too is not here.

Every one is a good store with one thing changed, named for what it does: the
memory store, one whose memory several stores share, or the one in Redis where
it is about trimming and expiring. `breaks` says which rules must fail for it;
all others must still hold.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Literal

import pytest
from msgspec.structs import replace
from tests.storage.store_makers import SharedMemoryMaker
from tests.support.redis_server import RedisServer

from nplt_storage import (
    BadEntry,
    Builder,
    ConversationHistory,
    ConversationNotFound,
    ConversationRow,
    ConversationStore,
    MemoryStore,
    MessagePage,
    Opened,
    Origin,
    PageQuery,
    Record,
    RowPage,
    RowQuery,
    SearchPage,
    SearchQuery,
    StoreDescription,
    encode_line,
    rows,
)
from nplt_storage.entries import (
    BlobReference,
    CompactionEntry,
    Entry,
    ModelInputEntry,
    ModelOutputEntry,
    WidgetEntry,
)
from nplt_storage.memory import EntryList, MemoryBuilder, MemoryRecord, StoredConversation
from nplt_storage.pages import read_page
from nplt_storage.redaction import redacted
from nplt_storage.redis import scripts, trimming
from nplt_storage.redis.trimming import TurnSpans
from nplt_storage.rows import new_row, page_of
from nplt_storage.search import search_entries

Break = Callable[[pytest.MonkeyPatch], None]
Kind = Literal["memory", "shared", "redis"]
BROKEN: dict[Kind, dict[str, tuple[Break, set[str]]]] = {"memory": {}, "shared": {}, "redis": {}}


def breaks(*rules: str, of: Kind = "memory") -> Callable[[Break], Break]:
    def add(how: Break) -> Break:
        BROKEN[of][how.__name__] = (how, set(rules))
        return how

    return add


# Writing


@breaks(
    "entries_come_back_in_their_order",
    "both_ways_meet_every_message_once",
    "walking_while_it_grows_meets_every_message_once",
    "a_page_is_the_same_open_or_closed",
    "entries_can_be_had_in_part",
    "what_was_built_is_there_in_one_step",
    "every_kind_of_entry_comes_back_as_it_was",
    "pages_are_had_in_the_order_of_the_turns",
)
def drops_one_entry(patch: pytest.MonkeyPatch) -> None:
    add = StoredConversation.add

    def dropping(self: StoredConversation, entry: Entry) -> None:
        add(self, entry)
        if entry.seq == 17:
            self.entries[-1] = self.entries[-2]

    patch.setattr(StoredConversation, "add", dropping)


@breaks("a_gap_is_refused", "a_gap_in_what_is_built_is_refused")
def accepts_a_gap(patch: pytest.MonkeyPatch) -> None:
    def add(self: StoredConversation, entry: Entry) -> None:
        if entry.seq <= len(self.entries):
            raise BadEntry("taken")
        encode_line(entry)
        self.entries.append(entry)
        self.row = rows.fold(self.row, entry)

    patch.setattr(StoredConversation, "add", add)


@breaks("an_append_gives_the_row_after_it")
def gives_the_row_before_an_append(patch: pytest.MonkeyPatch) -> None:
    append = MemoryRecord.append

    async def late(self: MemoryRecord, entry: Entry) -> ConversationRow:
        before = self._stored.row
        await append(self, entry)
        return before

    patch.setattr(MemoryRecord, "append", late)


@breaks("a_number_that_is_taken_is_refused")
def says_yes_to_a_number_that_is_taken(patch: pytest.MonkeyPatch) -> None:
    add = StoredConversation.add

    def forgiving(self: StoredConversation, entry: Entry) -> None:
        if not 1 <= entry.seq <= len(self.entries) or self.writer is None:
            add(self, entry)

    patch.setattr(StoredConversation, "add", forgiving)


@breaks("a_refused_entry_leaves_nothing")
def counts_before_it_checks(patch: pytest.MonkeyPatch) -> None:
    add = StoredConversation.add

    def hasty(self: StoredConversation, entry: Entry) -> None:
        try:
            add(self, entry)
        except BadEntry:
            self.row = replace(self.row, message_count=self.row.message_count + 1)
            raise

    patch.setattr(StoredConversation, "add", hasty)


@breaks("any_text_comes_back_as_it_was", "the_whole_text_of_one_entry_can_be_had")
def ends_texts_at_the_first_nul(patch: pytest.MonkeyPatch) -> None:
    add = StoredConversation.add

    def cutting(self: StoredConversation, entry: Entry) -> None:
        if isinstance(entry, ModelInputEntry | ModelOutputEntry):
            entry = replace(entry, content=entry.content.split("\x00")[0])
        add(self, entry)

    patch.setattr(StoredConversation, "add", cutting)


@breaks("a_new_conversation_is_empty_and_listed")
def calls_new_ones_damaged(patch: pytest.MonkeyPatch) -> None:
    row = MemoryStore.row

    async def worried(self: MemoryStore, session_id: str) -> ConversationRow | None:
        found = await row(self, session_id)
        return replace(found, damaged=True) if found and not found.head_seq else found

    patch.setattr(MemoryStore, "row", worried)


@breaks("what_was_acknowledged_is_seen_at_once")
def shows_the_fifth_entry_later(patch: pytest.MonkeyPatch) -> None:
    entries = MemoryStore.entries

    async def late(
        self: MemoryStore, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        is_open = self._find(session_id).writer is not None
        async for batch in entries(self, session_id, after=after, through=through):
            turns = {entry.turn_id for entry in batch}
            yield batch[:4] if is_open and len(batch) == len(turns) == 5 else batch

    patch.setattr(MemoryStore, "entries", late)


@breaks("an_opened_conversation_can_be_continued")
def opens_with_an_old_row(patch: pytest.MonkeyPatch) -> None:
    open_ = MemoryStore.open

    async def opening(self: MemoryStore, session_id: str) -> Opened:
        opened = await open_(self, session_id)
        return replace(opened, row=replace(opened.row, head_seq=opened.row.head_seq - 1))

    patch.setattr(MemoryStore, "open", opening)


@breaks("it_says_what_it_is_and_what_it_promises")
def promises_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryStore, "description", StoreDescription(backend="memory", promise=""))


# Writers


@breaks("a_conversation_is_open_once", "the_writer_of_a_deleted_conversation_writes_nothing")
def can_be_opened_twice(patch: pytest.MonkeyPatch) -> None:
    open_ = MemoryStore.open

    async def opening(self: MemoryStore, session_id: str) -> Any:
        self._find(session_id).writer = None
        return await open_(self, session_id)

    patch.setattr(MemoryStore, "open", opening)


@breaks(
    "a_closed_record_writes_nothing",
    "the_writer_of_a_deleted_conversation_writes_nothing",
    "what_can_not_be_redacted_is_refused",
)
def lets_closed_records_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryRecord, "_writable", lambda self: self._stored)


@breaks("the_same_id_is_not_given_twice")
def creates_over_what_is_there(patch: pytest.MonkeyPatch) -> None:
    create = MemoryStore.create

    async def creating(self: MemoryStore, session_id: str, *, user: str) -> Record:
        self._conversations.pop(session_id, None)
        return await create(self, session_id, user=user)

    patch.setattr(MemoryStore, "create", creating)


@breaks("an_id_that_could_be_a_path_is_refused", "building_replaces_nothing")
def takes_any_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("nplt_storage.memory.is_session_id", lambda _: True)


@breaks("what_is_not_there_is_not_found", "a_deleted_conversation_is_gone")
def shows_empty_pages_of_what_is_not_there(patch: pytest.MonkeyPatch) -> None:
    page = MemoryStore.page

    async def kind(self: MemoryStore, session_id: str, query: PageQuery) -> MessagePage:
        try:
            return await page(self, session_id, query)
        except ConversationNotFound:
            return MessagePage(
                messages=(), has_more_before=False, has_more_after=False, before=0, after=0
            )

    patch.setattr(MemoryStore, "page", kind)


# Pages


def _page_with(patch: pytest.MonkeyPatch, change: Callable[[PageQuery], PageQuery]) -> None:
    page = MemoryStore.page

    async def changed(self: MemoryStore, session_id: str, query: PageQuery) -> MessagePage:
        return await page(self, session_id, change(query))

    patch.setattr(MemoryStore, "page", changed)


@breaks("a_page_is_not_larger_than_asked_for_and_never_empty")
def gives_pages_of_any_size(patch: pytest.MonkeyPatch) -> None:
    _page_with(patch, lambda query: replace(query, bytes_max=10**9))


@breaks("a_page_around_a_message_holds_it_and_its_neighbours")
def looks_around_the_wrong_way(patch: pytest.MonkeyPatch) -> None:
    def before(query: PageQuery) -> PageQuery:
        around = query.around if query.view == "messages" else None
        return query if around is None else replace(query, around=None, before=around)

    _page_with(patch, before)


@breaks("tool_results_are_joined_to_their_calls")
def loses_the_results_of_tools(patch: pytest.MonkeyPatch) -> None:
    after = EntryList.after

    def without(self: EntryList, seq: int) -> Iterator[Entry]:
        return (entry for entry in after(self, seq) if entry.kind != "tool_results")

    patch.setattr(EntryList, "after", without)


@breaks(
    "pages_show_what_stands",
    "everything_can_be_taken_back",
    "it_is_opened_as_it_stands",
    "turns_are_taken_back_from_between_others",
)
def shows_what_was_taken_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "nplt_storage.memory.read_page",
        lambda query, source, hidden, *others: read_page(query, source, (), *others),
    )


@breaks("nothing_is_erased_by_a_rollback")
def erases_what_was_taken_back(patch: pytest.MonkeyPatch) -> None:
    text_of = MemoryStore.text_of

    async def only_standing(self: MemoryStore, session_id: str, seq: int) -> str | None:
        hidden = self._find(session_id).row.hidden
        taken_back = any(first <= seq <= last for first, last in hidden)
        return None if taken_back else await text_of(self, session_id, seq)

    patch.setattr(MemoryStore, "text_of", only_standing)


# Rows and lists


@breaks("rows_are_what_the_entries_say", "a_list_can_be_narrowed")
def misses_new_names(patch: pytest.MonkeyPatch) -> None:
    def deaf(row: ConversationRow, entry: Entry) -> ConversationRow:
        folded = rows.fold(row, entry)
        return replace(folded, name=row.name) if entry.kind == "renamed" else folded

    patch.setattr("nplt_storage.memory.fold", deaf)


@breaks(
    "users_see_their_own_only",
    "search_finds_no_text_of_other_users",
    "conversations_that_need_attention_are_listed",
)
def lists_what_others_have(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryStore, "_of", lambda self, user: list(self._conversations.values()))


def _list_with(patch: pytest.MonkeyPatch, change: Callable[[RowQuery], RowQuery]) -> None:
    async def changed(self: MemoryStore, user: str, query: RowQuery) -> RowPage:
        return page_of([kept.row for kept in self._of(user)], change(query))

    patch.setattr(MemoryStore, "list", changed)


@breaks(
    "a_list_is_walked_page_by_page",
    "a_list_can_be_walked_while_conversations_move",
    "what_is_no_cursor_is_refused",
    "conversations_that_need_attention_are_listed",
    "a_copy_counts_as_seen",
)
def begins_every_list_again(patch: pytest.MonkeyPatch) -> None:
    _list_with(patch, lambda query: replace(query, cursor=None))


@breaks(
    "a_list_has_pinned_ones_on_top_then_the_newest",
    "a_list_is_walked_page_by_page",
    "conversations_that_need_attention_are_listed",
    "a_copy_counts_as_seen",
)
def does_not_care_for_pins(patch: pytest.MonkeyPatch) -> None:
    async def unpinned(self: MemoryStore, user: str, query: RowQuery) -> RowPage:
        return page_of([replace(kept.row, pinned=False) for kept in self._of(user)], query)

    patch.setattr(MemoryStore, "list", unpinned)


@breaks(
    "a_mark_of_what_was_seen_moves_forward",
    "conversations_that_need_attention_are_listed",
)
def sets_no_marks(patch: pytest.MonkeyPatch) -> None:
    async def unmoved(self: MemoryStore, session_id: str, seq: int, *, unread: bool = False) -> int:
        return self._find(session_id).seen_seq or 0

    patch.setattr(MemoryStore, "mark_seen", unmoved)


@breaks("last_access_is_remembered")
def forgets_who_looked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryStore, "touch", lambda self, session_id, at: None)


@breaks("rows_and_searches_follow_a_rollback")
def finds_what_was_taken_back(patch: pytest.MonkeyPatch) -> None:
    async def search(self: MemoryStore, user: str, query: SearchQuery) -> SearchPage:
        pairs = ((replace(k.row, hidden=()), entry) for k in self._of(user) for entry in k.entries)
        return search_entries(pairs, query)

    patch.setattr(MemoryStore, "search", search)


@breaks("search_finds_the_newest_first")
def finds_whole_words_in_their_case_only(patch: pytest.MonkeyPatch) -> None:
    search = MemoryStore.search

    async def strict(self: MemoryStore, user: str, query: SearchQuery) -> SearchPage:
        page = await search(self, user, query)
        texts = {hit: self._conversations[hit.session_id].entries[hit.seq - 1] for hit in page.hits}
        hits = [h for h, e in texts.items() if query.text in getattr(e, "content", "")]
        return replace(page, hits=tuple(hits))

    patch.setattr(MemoryStore, "search", strict)


@breaks("what_was_found_is_walked_page_by_page")
def finds_the_same_again(patch: pytest.MonkeyPatch) -> None:
    search = MemoryStore.search

    async def fresh(self: MemoryStore, user: str, query: SearchQuery) -> SearchPage:
        return await search(self, user, replace(query, cursor=None))

    patch.setattr(MemoryStore, "search", fresh)


# Whole conversations


@breaks(
    "what_was_built_is_there_in_one_step",
    "what_was_given_up_leaves_nothing",
    "a_gap_in_what_is_built_is_refused",
    "an_id_taken_meanwhile_is_not_taken_away",
)
def builds_in_the_open(patch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def build(self: MemoryStore, session_id: str, origin: Origin) -> AsyncIterator[Builder]:
        self._check_free(session_id)
        row = new_row(session_id, user=origin.user, created_at=origin.created_at)
        self._conversations[session_id] = kept = StoredConversation(origin, row)
        yield MemoryBuilder(kept)

    patch.setattr(MemoryStore, "build", build)


@breaks("an_empty_one_can_be_built")
def does_not_build_empty_ones(patch: pytest.MonkeyPatch) -> None:
    build = MemoryStore.build

    @asynccontextmanager
    async def wanting(self: MemoryStore, session_id: str, origin: Origin) -> AsyncIterator[Builder]:
        async with build(self, session_id, origin) as builder:
            yield builder
        if not self._conversations[session_id].entries:
            del self._conversations[session_id]

    patch.setattr(MemoryStore, "build", wanting)


@breaks("the_origin_of_a_created_one_is_known", "what_was_built_is_there_in_one_step")
def says_that_it_began_today(patch: pytest.MonkeyPatch) -> None:
    async def today(self: MemoryStore, session_id: str) -> Origin:
        return replace(self._find(session_id).origin, created_at=self._clock())

    patch.setattr(MemoryStore, "origin", today)


@breaks("the_same_bytes_may_be_kept_twice_and_none_at_all")
def keeps_no_blob_twice(patch: pytest.MonkeyPatch) -> None:
    keep_blob = StoredConversation.keep_blob

    def jealous(self: StoredConversation, data: bytes) -> BlobReference:
        if data in self.blobs.values():
            raise BadEntry("it is there already")
        return keep_blob(self, data)

    patch.setattr(StoredConversation, "keep_blob", jealous)


@breaks("a_blob_is_read_whole_or_in_part")
def reads_blobs_from_their_beginning(patch: pytest.MonkeyPatch) -> None:
    blob = MemoryStore.blob

    async def first(
        self: MemoryStore, session_id: str, id_: str, offset: int, length: int
    ) -> bytes:
        return await blob(self, session_id, id_, min(offset, 0), length)

    patch.setattr(MemoryStore, "blob", first)


@breaks("a_blob_that_is_not_there_is_refused")
def hands_out_blobs_of_others(patch: pytest.MonkeyPatch) -> None:
    blob = MemoryStore.blob

    async def any_(self: MemoryStore, session_id: str, id_: str, offset: int, length: int) -> bytes:
        owner = next(
            (k for k, kept in self._conversations.items() if id_ in kept.blobs), session_id
        )
        self._find(session_id)
        return await blob(self, owner, id_, offset, length)

    patch.setattr(MemoryStore, "blob", any_)


# Erasing and deleting


@breaks(
    "what_was_taken_back_or_erased_was_still_sent",
    "redacted_words_are_nowhere",
    "a_tombstone_stands_where_the_entry_was",
    "a_redacted_result_takes_its_blob_along",
    "redaction_removes_what_another_program_stored",
)
def only_says_that_it_redacted(patch: pytest.MonkeyPatch) -> None:
    async def pretend(self: MemoryRecord, seq: int, *, at: datetime) -> Entry:
        kept = self._writable()
        if not 1 <= seq <= len(kept.entries):
            raise BadEntry("not there")
        return redacted(kept.entries[seq - 1], at)

    patch.setattr(MemoryRecord, "redact", pretend)


@breaks("it_goes_on_after_a_redaction")
def is_closed_by_a_redaction(patch: pytest.MonkeyPatch) -> None:
    redact = MemoryRecord.redact

    async def closing(self: MemoryRecord, seq: int, *, at: datetime) -> Entry:
        tombstone = await redact(self, seq, at=at)
        if seq == 4 and self._stored.row.head_seq == 4:
            await self.close()
        return tombstone

    patch.setattr(MemoryRecord, "redact", closing)


@breaks(
    "a_name_belongs_to_its_conversation",
    "an_undeleted_conversation_is_as_it_was",
    "only_ones_own_is_brought_back",
    "undelete_shows_whether_another_may_restore_it",
    "the_trash_lists_ones_own_deleted_conversations",
    "undeleting_replaces_nothing",
)
def has_no_trash(patch: pytest.MonkeyPatch) -> None:
    delete = MemoryStore.delete

    async def burning(self: MemoryStore, session_id: str) -> None:
        await delete(self, session_id)
        self._trash.clear()

    patch.setattr(MemoryStore, "delete", burning)


# What was said


@breaks(
    "entries_are_there_when_opened_again",
    "the_words_of_an_earlier_call_are_not_mixed_in",
    "the_end_of_another_turn_does_not_forget_it",
)
def does_not_listen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryRecord, "journal_delta", lambda self, turn_id, call, kind, text: None)


@breaks("what_became_an_entry_is_forgotten", "saying_never_fails")
def never_drops_the_partial_answer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("nplt_storage.memory.outdates", lambda *_: False)
    patch.setattr("nplt_storage.memory.unless_stored", lambda pieces, row, entries: pieces)


# Several stores on one place


@breaks(of="shared")
def leaves_it_to_append_to_refuse_a_second_writer(patch: pytest.MonkeyPatch) -> None:
    """Not broken: the other way to keep the rule."""
    can_be_opened_twice(patch)
    patch.setattr(MemoryRecord, "_writable", lambda self: self._stored)


@breaks(
    "what_was_sent_is_known_to_the_next_store",
    "what_one_store_wrote_is_there_for_the_next",
    "what_was_deleted_stays_so_for_the_next_store",
    "what_was_acknowledged_survives_a_crash",
    "it_goes_on_after_every_crash",
    "what_was_deleted_or_redacted_stays_so",
    "after_a_crash_there_is_how_it_began",
    "a_stale_writer_is_refused_and_changes_nothing",
    "two_stores_that_contend_lose_and_mix_nothing",
    "marks_are_kept_for_the_next_store",
    of="shared",
)
def begins_with_nothing(patch: pytest.MonkeyPatch) -> None:
    async def new(self: SharedMemoryMaker, **_: object) -> ConversationStore:
        return MemoryStore(self.clock)

    patch.setattr(SharedMemoryMaker, "open_store", new)


# What was sent before


@breaks(
    "a_prompt_that_was_sent_is_known_by_its_name",
    "what_was_taken_back_or_erased_was_still_sent",
    "a_name_belongs_to_its_conversation",
)
def forgets_what_was_sent(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: MemoryStore, session_id: str, message_id: str) -> None:
        self._find(session_id)

    patch.setattr(MemoryStore, "prompt_by_message_id", nothing)


# What still holds


@breaks("state_set_far_from_the_end_still_holds")
def forgets_the_state_of_widgets(patch: pytest.MonkeyPatch) -> None:
    def forgetful(session_id: str, entries: Sequence[Entry], **known: Any) -> ConversationHistory:
        kept = [entry for entry in entries if not isinstance(entry, WidgetEntry)]
        return ConversationHistory(session_id, kept, **known)

    patch.setattr("nplt_storage.memory.ConversationHistory", forgetful)


@breaks("a_summary_far_from_the_end_still_holds")
def forgets_summaries(patch: pytest.MonkeyPatch) -> None:
    def forgetful(session_id: str, entries: Sequence[Entry], **known: Any) -> ConversationHistory:
        kept = [entry for entry in entries if not isinstance(entry, CompactionEntry)]
        return ConversationHistory(session_id, kept, **known)

    patch.setattr("nplt_storage.memory.ConversationHistory", forgetful)


@breaks("what_was_billed_is_in_the_row")
def takes_back_what_was_billed(patch: pytest.MonkeyPatch) -> None:
    def forgiving(row: ConversationRow, entry: Entry) -> ConversationRow:
        folded = rows.fold(row, entry)
        return replace(folded, billed=()) if entry.kind == "rollback" else folded

    patch.setattr("nplt_storage.memory.fold", forgiving)


# Trimming and expiring


@breaks(
    "what_was_trimmed_was_still_sent",
    "only_the_newest_turns_are_kept",
    "no_turn_is_ever_split",
    "what_was_trimmed_is_still_accounted_for",
    "a_trimmed_conversation_can_be_rolled_back_within_reach",
    "nothing_leads_back_to_what_was_trimmed",
    of="redis",
)
def keeps_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TurnSpans, "first_to_keep", lambda self, max_turns: 0)


@breaks(
    "what_was_trimmed_is_still_accounted_for",
    "state_set_right_before_the_cut_still_holds",
    of="redis",
)
def forgets_the_prompts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(trimming, "state_seqs_of", lambda row: {})


@breaks("an_unused_conversation_expires", of="redis")
def never_expires(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RedisServer, "pass_time", lambda self, seconds, prefix: None)


@breaks("opening_and_touching_keep_it_alive", of="redis")
def expires_though_someone_looks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scripts, "TOUCH", "return 'done'")
