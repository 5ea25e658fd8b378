"""Holds the configured histories (conversation stores) and finds conversations in them.

One history is enough for most servers; an operator may configure several (files, Redis,
memory). The first takes new conversations unless SESSION_NEW names another. Lists and
searches merge all of them. If one fails to open, those already open are closed.
"""

from __future__ import annotations

import builtins
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_server.digest import levels_of
from nplt_server.errors import CannotServe, ConfigurationError
from nplt_server.settings import ClusterSettings, HistorySettings, Settings
from nplt_storage.attachments import AttachmentFiles
from nplt_storage.changes import RowChanges
from nplt_storage.errors import (
    BadEntry,
    ConversationNotFound,
    ConversationReadOnly,
    DataDirectoryInUse,
    StorageAway,
    StorageError,
    StorageUnavailable,
)
from nplt_storage.file_system import Disk
from nplt_storage.opening import (
    BadStoreConfig,
    StoreConfig,
    StoreContext,
    check_config,
    open_store_in,
)
from nplt_storage.rows import ConversationRow, RowPage, RowQuery, place_of, write_cursor
from nplt_storage.search import SearchPage, SearchQuery, place_of_hit, write_search_cursor
from nplt_storage.store import (
    ConversationStore,
    DeletedConversation,
    KeepsFiles,
    MemberNote,
    Shared,
)

log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 200
_ID_KEY_BYTES = 32
_DIRECTORY_GONE = (
    "the server's data directory is gone; put it back where it was, or restart the server to "
    "begin with an empty one"
)
_Result = TypeVar("_Result")


class HistoryProfile(Struct, frozen=True, kw_only=True):
    id: str
    store: ConversationStore
    system_message: str | None = None
    """The system message of a new conversation that sets none itself."""
    turns_max: int | None = None
    """The largest number of turns that a model is shown."""
    directory: Path | None = None
    """The directory of its files, if it is kept in files."""

    @property
    def read_only_reason(self) -> str | None:
        return _DIRECTORY_GONE if self._is_gone else self.store.read_only_reason

    def check_there(self) -> None:
        if self._is_gone:
            raise StorageUnavailable(_DIRECTORY_GONE)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Around what fails when the directory is gone: each file that is missed looks as if it
        were deleted or replaced."""
        try:
            yield
        except (ConversationNotFound, ConversationReadOnly):
            self.check_there()
            raise

    @property
    def _is_gone(self) -> bool:
        return self.directory is not None and not (self.directory / "history").is_dir()


class FoundConversation(Struct, frozen=True, kw_only=True):
    profile: HistoryProfile
    row: ConversationRow


class Histories:
    def __init__(self, profiles: Sequence[HistoryProfile], *, id_key: bytes | None = None) -> None:
        self._profiles = tuple(profiles)
        self.id_key = id_key or secrets.token_bytes(_ID_KEY_BYTES)
        """The key of the stored ids of conversations whose ids users choose. Servers that share
        a history have the same key; otherwise it lasts as long as the process."""

    def __iter__(self) -> Iterator[HistoryProfile]:
        return iter(self._profiles)

    @property
    def default(self) -> HistoryProfile:
        return self._profiles[0]

    @property
    def shared(self) -> Shared | None:
        """The first store that other servers may use too; servers coordinate through it."""
        stores = (profile.store for profile in self._profiles)
        return next((store for store in stores if isinstance(store, Shared)), None)

    @property
    def clock(self) -> Callable[[], datetime]:
        """Gives the times to be stored: the clock that all servers of a shared store have in
        common, else that of this machine."""
        return utc_now if self.shared is None else self.shared.now

    @property
    def is_shared_away(self) -> bool:
        """Whether the last request to a store that other servers may use too has failed."""
        return any(
            isinstance(profile.store, Shared) and profile.read_only_reason is not None
            for profile in self._profiles
        )

    def profile(self, wanted: str | None) -> HistoryProfile:
        if wanted is None:
            return self.default
        for profile in self._profiles:
            if profile.id == wanted:
                return profile
        known = ", ".join(profile.id for profile in self._profiles)
        raise RequestError(
            ErrorCode.NOT_FOUND,
            f"there is no history {wanted!r}; there are: {known}",
            field="history",
        )

    async def find(self, session_id: str) -> FoundConversation | None:
        trouble: StorageError | None = None
        for profile in self._profiles:
            try:
                row = await profile.store.row(session_id)
            except StorageError as error:
                trouble = error  # another history may have the conversation
                continue
            if row is not None:
                return FoundConversation(profile=profile, row=row)
        if trouble is not None:
            raise trouble
        return None

    async def list(self, user: str, query: RowQuery) -> RowPage:
        pages = await self._ask_each(lambda store: store.list(user, query))
        if len(pages) == 1:
            return pages[0]
        rows = sorted((row for page in pages for row in page.rows), key=place_of, reverse=True)
        page = tuple(rows[: query.limit])
        more = len(rows) > len(page) or any(page.next_cursor for page in pages)
        return RowPage(
            rows=page,
            next_cursor=write_cursor(page[-1]) if more and page else None,
            incomplete=any(page.incomplete for page in pages),
        )

    async def rows(self, user: str, query: RowQuery) -> AsyncIterator[ConversationRow]:
        """All rows, read page by page: a user may have a hundred thousand."""
        query = replace(query, limit=_ROWS_AT_ONCE)
        while True:
            page = await self.list(user, query)
            for row in page.rows:
                yield row
            if page.next_cursor is None:
                return
            query = replace(query, cursor=page.next_cursor)

    async def all_rows(self, user: str, query: RowQuery) -> builtins.list[ConversationRow]:
        return [row async for row in self.rows(user, query)]

    async def count(self, user: str) -> int:
        return sum(await self._ask_each(lambda store: store.count(user)))

    @property
    def changes(self) -> builtins.list[RowChanges]:
        """The changes of all histories. An operator's own store may report none."""
        found = (getattr(profile.store, "changes", None) for profile in self._profiles)
        return [changes for changes in found if changes is not None]

    async def seen(self, session_ids: Sequence[str]) -> Mapping[str, int]:
        """The marks of what their users have seen of these conversations."""
        marks: dict[str, int] = {}
        for profile in self._profiles:
            if hasattr(profile.store, "seen"):  # an operator's own store may not keep marks
                marks.update(await profile.store.seen(session_ids))
        return marks

    async def undelete(self, session_id: str, user: str) -> None:
        """Raises `ConversationExists` if another conversation has its id by now."""
        for profile in self._profiles:
            with suppress(ConversationNotFound):
                await profile.store.undelete(session_id, user=user)
                return
        raise ConversationNotFound(session_id)

    async def trash(
        self, user: str, *, limit: int | None = None
    ) -> builtins.list[DeletedConversation]:
        """Returns the deleted conversations of all histories, the last deleted first; `limit`: at
        least so many, if there are."""

        async def deleted(store: ConversationStore) -> Sequence[DeletedConversation]:
            # An operator's own store may have been written before this method existed.
            return await store.trash(user, limit=limit) if hasattr(store, "trash") else ()

        found = [each for some in await self._ask_each(deleted) for each in some]
        return sorted(found, key=lambda each: (each.deleted_at, each.row.session_id), reverse=True)

    async def is_trash_of_another(self, session_id: str, user: str) -> bool:
        return any(await self._ask_each(lambda s: s.is_trash_of_another(session_id, user)))

    async def search(self, user: str, query: SearchQuery) -> SearchPage:
        """Returns the newest hits of all histories first, or the best ones; cursors of all are
        comparable."""
        pages = await self._ask_each(lambda store: store.search(user, query))
        if len(pages) == 1:
            return pages[0]
        if query.ranked:
            found = [hit for page in pages for hit in page.hits]
            found.sort(key=lambda hit: (hit.session_id == query.first_in, hit.score), reverse=True)
            best = tuple(found[: query.limit])
            return SearchPage(hits=best, incomplete=any(page.incomplete for page in pages))
        hits = sorted((hit for page in pages for hit in page.hits), key=place_of_hit, reverse=True)
        shown = tuple(hits[: query.limit])
        more = len(hits) > len(shown) or any(page.next_cursor for page in pages)
        cursor = write_search_cursor(place_of_hit(shown[-1])) if more and shown else None
        incomplete = any(page.incomplete for page in pages)
        return SearchPage(hits=shown, next_cursor=cursor, incomplete=incomplete)

    async def close(self) -> None:
        for profile in self._profiles:
            try:
                await profile.store.close()
            except StorageError as error:
                log.warning("the history %s could not be closed: %s", profile.id, error)

    async def _ask_each(
        self, ask: Callable[[ConversationStore], Awaitable[_Result]]
    ) -> builtins.list[_Result]:
        """Calls `ask` with each store. A store that fails is left out, unless all fail."""
        results: builtins.list[_Result] = []
        trouble: StorageError | None = None
        for profile in self._profiles:
            try:
                results.append(await ask(profile.store))
            except StorageError as error:
                trouble = error
                log.warning("the history %s does not answer: %s", profile.id, error)
        if trouble is not None and not results:
            raise trouble
        return results


class FilePeers(Protocol):
    """The other servers of the cluster."""

    def file_pieces(
        self, address: str, user: str, session_id: str, file_id: str
    ) -> AsyncIterator[bytes]:
        """Raises `BadEntry` if the server at that address does not have the file, and
        `StorageUnavailable` if it can't be reached."""
        ...


class HistoryFiles:
    """The files that are kept with their conversations, for the servers that share a history. One
    that is too large for that stays at the server that got it, and the others fetch it there."""

    def __init__(self, histories: Histories, settings: Settings) -> None:
        self.peers: FilePeers | None = None
        self._histories = histories
        ttls = (history.backend.options.get("ttl") for history in settings.histories)
        self._ttl_seconds = max((ttl for ttl in ttls if isinstance(ttl, int)), default=0)
        self._bytes_max = settings.files.bytes_max if settings.files.type == "redis" else 0

    async def keep(self, session_id: str, file_id: str, path: Path, *, size: int) -> None:
        """Copies a file to the history of its conversation, or notes there that it is here."""
        store, _ = await self._kept_by(session_id)
        if store is None:
            return
        if size <= self._bytes_max:
            await store.keep_file(session_id, file_id, path)
        else:
            await store.note_file(session_id, file_id)

    async def drop(self, session_id: str, file_id: str) -> None:
        store, _ = await self._kept_by(session_id)
        if store is not None:
            await store.drop_file(session_id, file_id)

    async def pieces(self, session_id: str, file_id: str) -> AsyncIterator[bytes]:
        store, user = await self._kept_by(session_id)
        if store is None:
            raise BadEntry(f"there is no file {file_id!r}")
        address = await store.server_with_file(session_id, file_id)
        if address is None or self.peers is None:
            pieces = store.file_pieces(session_id, file_id)
        else:
            pieces = self.peers.file_pieces(address, user, session_id, file_id)
        async for piece in pieces:
            yield piece

    async def remove_expired(self, files: AttachmentFiles) -> None:
        """Removes this server's files of conversations that have expired (`ttl`). Raises
        `StorageError` if a history does not answer, because it may have the conversation."""
        if not self._ttl_seconds:
            return
        for session_id in await files.unchanged_for(self._ttl_seconds):
            if await self._histories.find(session_id) is not None:
                continue
            stores = [profile.store for profile in self._histories]
            if not any([await store.is_trash_of_another(session_id, "") for store in stores]):
                await files.remove_all(session_id)

    async def _kept_by(self, session_id: str) -> tuple[KeepsFiles | None, str]:
        """The store that keeps the files of a conversation, if there is one, and its user."""
        if not any(isinstance(profile.store, KeepsFiles) for profile in self._histories):
            return None, ""
        found = await self._histories.find(session_id)
        if found is None or not isinstance(found.profile.store, KeepsFiles):
            return None, ""
        return found.profile.store, found.row.user


utc_now: Final[Callable[[], datetime]] = partial(datetime.now, UTC)
"""The server's clock."""


def _config_of(history: HistorySettings) -> StoreConfig:
    return StoreConfig(type=history.backend.type, options=history.backend.options)


def check_histories(settings: Settings) -> None:
    """Raises `ConfigurationError` with one sentence per mistake; opens nothing."""
    mistakes = []
    for place, history in enumerate(settings.histories):
        try:
            check_config(_config_of(history))
        except BadStoreConfig as error:
            mistakes.append(f"histories.{place}.backend: {error}")
    if mistakes:
        raise ConfigurationError(mistakes)


async def examine_shared(settings: Settings, note: MemberNote) -> builtins.list[str]:
    """Opens the histories that servers share, one after another, and returns what an operator
    should change. Raises `CannotServe` if one of them can't be used, unless it is only away."""
    problems: builtins.list[str] = []
    alone = settings.model_copy(update={"cluster": ClusterSettings()})  # the server may be running
    for history in settings.histories:
        if history.backend.type != "redis":
            continue
        try:
            store = await _open(history, settings.data_dir, utc_now, alone, waits=False)
        except CannotServe as error:
            if not isinstance(error.__cause__, StorageAway):
                raise
            problems.append(str(error))
            continue
        try:
            if isinstance(store, Shared):
                await store.compare(note)
                problems += [f"history {history.id}: {says}" for says in store.view.problems]
        finally:
            await store.close()
    return problems


async def open_histories(settings: Settings, clock: Callable[[], datetime]) -> Histories:
    older = settings.graph.history if settings.graph else None
    if older is not None and older.enabled:
        log.warning("graph.history is not looked at: histories is there, and wins")
    profiles: list[HistoryProfile] = []
    in_files = (each.id for each in settings.histories if each.backend.type == "json")
    first = next(in_files, None)
    try:
        for history in settings.histories:
            # The first history kept in files uses the data directory itself, others a folder in it.
            own = settings.data_dir / "histories" / history.id
            directory = settings.data_dir if history.id == first else own
            profile = HistoryProfile(
                id=history.id,
                store=await _open(history, directory, clock, settings),
                system_message=history.system_message,
                turns_max=history.backend.turns_max,
                directory=directory if history.backend.type == "json" else None,
            )
            profiles.append(profile)
    except BaseException:
        await Histories(profiles).close()
        raise
    return await _with_shared_key(Histories(profiles))


async def _with_shared_key(histories: Histories) -> Histories:
    if histories.shared is None:
        return histories
    try:
        id_key = await histories.shared.agreed_key(histories.id_key)
    except BaseException as error:
        await histories.close()
        if isinstance(error, StorageError):
            raise CannotServe(f"can't use the shared history: {error}") from None
        raise
    return Histories(tuple(histories), id_key=id_key)


async def _open(
    history: HistorySettings,
    directory: Path,
    clock: Callable[[], datetime],
    settings: Settings,
    *,
    waits: bool = True,
) -> ConversationStore:
    try:
        if history.backend.type == "json" and directory != settings.data_dir:
            # `Disk` follows no symbolic links below the data directory.
            make = Disk(settings.data_dir).make_directory
            await anyio.to_thread.run_sync(make, directory)
        context = StoreContext(
            data_dir=directory,
            clock=clock,
            system_message=history.system_message,
            advertise=settings.advertised,
            levels=levels_of,
            is_server=True,
            waits=waits,
            has_users=bool(settings.users),
        )
        return await open_store_in(context, _config_of(history))
    except BadStoreConfig as error:
        raise ConfigurationError([f"history {history.id}: {error}"]) from None
    except DataDirectoryInUse:
        raise CannotServe(
            f"{directory} is in use by another nplt-server; stop it, or give another --data-dir"
        ) from None
    except (StorageError, OSError) as error:
        where = directory if history.backend.type == "json" else f"the history {history.id}"
        raise CannotServe(f"can't use {where}: {error}") from error
