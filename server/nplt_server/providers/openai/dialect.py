"""What a provider needs to know of an API: how to write a request, how to read an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from nplt_protocol.json_values import JsonObject
from nplt_server.deltas import ModelOutputDelta
from nplt_server.providers.base import ModelRequest
from nplt_server.providers.compiling import Compiled, VendorRules

ApiPath: TypeAlias = Literal["/chat/completions", "/responses"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    body: JsonObject
    seqs: tuple[tuple[int, ...], ...]
    """Of each message (or item) in the body: the entries it shows."""
    own_names: Mapping[str, str] = field(default_factory=dict)
    """What the model was told a tool is called → what it is called here."""


class AnswerParser(Protocol):
    """Events in, deltas out. Raises a `ProviderError` for what can't be an answer."""

    @property
    def has_spoken(self) -> bool:
        """A piece of the answer was there: from now on nobody else may be asked."""
        ...

    @property
    def is_thinking(self) -> bool:
        """It has begun to, and says nothing of it: a long silence is no bad sign."""
        ...

    @property
    def is_done(self) -> bool:
        """Nothing that matters can follow."""
        ...

    def feed(self, data: bytes) -> list[ModelOutputDelta]: ...


class Dialect(Protocol):
    @property
    def specification(self) -> str: ...

    @property
    def path(self) -> ApiPath: ...

    @property
    def rules(self) -> VendorRules: ...

    def render(self, request: ModelRequest, compiled: Compiled | None = None) -> Rendered:
        """`compiled`: the request's context, where somebody has done that already."""
        ...

    def parser(self, rendered: Rendered) -> AnswerParser: ...
