"""How things are called in Redis. What the shapes mean: the package's docstring."""

from __future__ import annotations

from dataclasses import dataclass

from nplt_storage.conversation.row_lists import Place
from nplt_storage.facts.entries import Entry, ModelInputEntry
from nplt_storage.facts.entry_to_json import time_as_text


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one conversation, wherever it stands: in use, in the trash, on its way."""

    base: str

    @property
    def log(self) -> str:
        return f"{self.base}:log"

    @property
    def meta(self) -> str:
        return f"{self.base}:meta"

    @property
    def checkpoint(self) -> str:
        return f"{self.base}:checkpoint"

    @property
    def prompts(self) -> str:
        return f"{self.base}:prompts"

    def blob(self, blob_id: str) -> str:
        return f"{self.base}:blob:{blob_id}"


@dataclass(frozen=True, slots=True)
class Keyspace:
    prefix: str

    def of(self, session_id: str) -> Keys:
        return Keys(f"{self.prefix}{session_id}")

    def in_trash(self, session_id: str) -> Keys:
        return Keys(f"{self.prefix}@trash:{session_id}")

    def being_made(self, token: str) -> Keys:
        return Keys(f"{self.prefix}@new:{token}")

    def list_of(self, user: str) -> str:
        return f"{self.prefix}@user:{user}"


def place_as_bytes(place: Place) -> bytes:
    """Sorts as places do, so that Redis can keep a user's list in order."""
    pinned, updated_at, session_id = place
    return f"{int(pinned)}{time_as_text(updated_at)}{session_id}".encode()


def session_id_in(place: bytes) -> str:
    return place[33:].decode()


def name_of(entry: Entry) -> str:
    """What its sender called a prompt; empty for everything else."""
    return (entry.message_id or "") if isinstance(entry, ModelInputEntry) else ""


def place_in_stream(entry: Entry) -> bytes:
    """What is noted under a prompt's name as long as its line is kept."""
    return b"[%d]" % entry.seq


def stream_id(seq: int) -> str:
    return f"{seq}-0"
