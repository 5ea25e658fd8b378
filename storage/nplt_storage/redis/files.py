"""The files attached to conversations, in Redis.

A file is kept in pieces, in the hash of its conversation's blobs, so it is deleted, restored and
expires with the conversation, and is in the same slot of a cluster:

    file:<file_id>:<n>    a piece
    file:<file_id>        the number of pieces; written last, so that a file is complete or absent
    file:<file_id>:at     the address of the server that has it, if it is too large to be kept here
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nplt_storage.errors import BadEntry, ConversationNotFound, StorageUnavailable
from nplt_storage.redis import scripts
from nplt_storage.redis.connection import Argument, RedisConnection

_PIECE_BYTES: Final = 512 * 1024


class RedisFiles:
    """Blocking calls, for a worker thread."""

    def __init__(self, connection: RedisConnection, ttl_milliseconds: int) -> None:
        self._connection = connection
        self._ttl_milliseconds = ttl_milliseconds

    def keep(self, session_id: str, file_id: str, path: Path) -> None:
        count = 0
        try:
            with path.open("rb") as file:
                while data := file.read(_PIECE_BYTES):
                    self._write(session_id, f"file:{file_id}:{count}", data)
                    count += 1
        except OSError as error:
            raise StorageUnavailable(f"the file can't be read: {error.strerror}") from error
        self._write(session_id, f"file:{file_id}", count)

    def note_place(self, session_id: str, file_id: str, address: str) -> None:
        self._write(session_id, f"file:{file_id}:at", address)

    def place(self, session_id: str, file_id: str) -> str | None:
        blobs = self._connection.keyspace.of(session_id).blobs
        address = self._connection.ask("HGET", blobs, f"file:{file_id}:at")
        return None if address is None else bytes(address).decode()

    def pieces(self, session_id: str, file_id: str) -> Iterator[bytes]:
        blobs = self._connection.keyspace.of(session_id).blobs
        count = self._connection.ask("HGET", blobs, f"file:{file_id}")
        if count is None:
            raise BadEntry(f"there is no file {file_id!r}")
        for number in range(int(count)):
            data = self._connection.ask("HGET", blobs, f"file:{file_id}:{number}")
            if data is None:
                raise BadEntry(f"a part of the file {file_id!r} is missing")
            yield bytes(data)

    def has(self, session_id: str, file_id: str) -> bool:
        """Whether the whole file is here, as far as its number of pieces tells."""
        blobs = self._connection.keyspace.of(session_id).blobs
        return bool(self._connection.ask("HEXISTS", blobs, f"file:{file_id}"))

    def drop(self, session_id: str, file_id: str) -> None:
        blobs = self._connection.keyspace.of(session_id).blobs
        count = self._connection.ask("HGET", blobs, f"file:{file_id}")
        pieces = [f"file:{file_id}:{number}" for number in range(int(count or 0))]
        self._connection.call("HDEL", blobs, f"file:{file_id}", f"file:{file_id}:at", *pieces)

    def _write(self, session_id: str, piece: str, data: Argument) -> None:
        keys = self._connection.keyspace.of(session_id)
        arguments = (piece, data, self._ttl_milliseconds)
        if self._connection.run(scripts.KEEP_FILE_PIECE, keys, *arguments) == b"gone":
            raise ConversationNotFound(session_id)
