"""What an emulated API is to the server in front of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Protocol

from tests.vendors.answers import Answer, ApiName
from tests.vendors.caching import Usage
from tests.vendors.faults import ErrorEvent
from tests.vendors.fields import JsonObject
from tests.vendors.rejections import Rejection
from tests.vendors.sse import Event, Wire


class Vendor(Protocol):
    """Manners all APIs of one vendor share."""

    request_id_header: str

    def authenticate(self, headers: Mapping[str, str]) -> None: ...
    def unreadable(self, error: str) -> Rejection: ...
    def too_large(self, bytes_max: int) -> Rejection: ...
    def failure(self, status: int) -> Rejection: ...
    def error_body(self, rejection: Rejection, request_id: str) -> JsonObject: ...
    def models(self, query: Mapping[str, str]) -> JsonObject: ...


class Api(Protocol):
    name: ApiName
    vendor: Vendor
    stranger: Event  # one no client has heard of
    ping: Event | None  # none: a comment does it

    def admit(self, body: object) -> Usage:
        """Raises a `Rejection` if a rule is broken."""
        ...

    def whole(self, body: JsonObject, answer: Answer, usage: Usage) -> JsonObject: ...

    def events(self, body: JsonObject, answer: Answer, usage: Usage, wire: Wire) -> list[Event]: ...

    def error_event(self, fault: ErrorEvent) -> Event: ...


class Ids:
    """Counted, so that two runs are alike."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers):024d}"
