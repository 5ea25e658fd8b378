"""What the library may be able to do one day; used where it is there."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Reconnects(Protocol):
    """Can be told to look for the server now, instead of when its patience says."""

    def reconnect(self) -> object: ...
