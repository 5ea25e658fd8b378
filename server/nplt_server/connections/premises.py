"""Everything an answer may need to look at: the server as a whole."""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from nplt_protocol.json_values import JsonObject
from nplt_server.connections.front_desk import FrontDesk
from nplt_server.conversations.household import Household
from nplt_server.conversations.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Premises:
    household: Household
    registry: Registry
    front_desk: FrontDesk
    limits_as_json: JsonObject
    started_at: float

    def uptime(self) -> float:
        return anyio.current_time() - self.started_at
