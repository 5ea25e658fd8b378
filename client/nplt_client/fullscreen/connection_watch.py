"""How the connection is, for whoever shows it: its state, a countdown, the lag."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic

from nplt_client.client import Client
from nplt_client.connection_states import ConnectionState, Online, Reconnecting
from nplt_client.errors import NpltError


class ConnectionWatch:
    def __init__(self, client: Client) -> None:
        self.lag_seconds = 0.0
        self._client = client
        self._said: ConnectionState = Online()
        self._said_at = 0.0

    def look(self) -> ConnectionState:
        """A `Reconnecting` says when it comes, counted from when it was said; here, from now."""
        now = monotonic()
        if self._client.connection is not self._said:
            self._said, self._said_at = self._client.connection, now
        if not isinstance(self._said, Reconnecting):
            return self._said
        left = max(0.0, self._said.in_seconds - (now - self._said_at))
        return replace(self._said, in_seconds=left)

    async def measure(self) -> None:
        if not isinstance(self._client.connection, Online):
            return
        sent = monotonic()
        try:
            await self._client.ping()
        except NpltError:
            return  # the state of the connection says the rest
        self.lag_seconds = monotonic() - sent
