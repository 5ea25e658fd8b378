"""Opens the histories the settings name, and closes those already open if one fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from nplt_server.conversations.library import HistoryProfile, Library
from nplt_server.errors import CannotServe, ConfigurationError
from nplt_server.settings import HistorySettings, Settings
from nplt_storage.errors import DataDirectoryInUse, StorageError
from nplt_storage.opening import BadStoreConfig, StoreConfig, check_config, open_store
from nplt_storage.store import ConversationStore

log = logging.getLogger(__name__)


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


async def open_library(settings: Settings, clock: Callable[[], datetime]) -> Library:
    older = settings.graph.history if settings.graph else None
    if older is not None and older.enabled:
        log.warning("graph.history is not looked at: histories is there, and wins")
    profiles: list[HistoryProfile] = []
    directories = _directories(settings)
    try:
        for history in settings.histories:
            store = await _open(history, directories[history.id], clock)
            profiles.append(
                HistoryProfile(
                    id=history.id,
                    store=store,
                    system_message=history.system_message,
                    turns_max=history.backend.turns_max,
                )
            )
    except BaseException:
        await Library(profiles).close()
        raise
    return Library(profiles)


def _directories(settings: Settings) -> dict[str, Path]:
    """The first history kept in files has the data directory; others a part of it."""
    directories = {
        history.id: settings.data_dir / "histories" / history.id for history in settings.histories
    }
    first = next((each for each in settings.histories if each.backend.type == "json"), None)
    if first is not None:
        directories[first.id] = settings.data_dir
    return directories


async def _open(
    history: HistorySettings, directory: Path, clock: Callable[[], datetime]
) -> ConversationStore:
    try:
        return await open_store(_config_of(history), data_dir=directory, clock=clock)
    except BadStoreConfig as error:
        raise ConfigurationError([f"history {history.id}: {error}"]) from None
    except DataDirectoryInUse:
        raise CannotServe(f"{directory} is in use by another nplt-server") from None
    except (StorageError, OSError) as error:
        where = directory if history.backend.type == "json" else f"the history {history.id}"
        raise CannotServe(f"can't use {where}: {error}") from None
