"""What the status line says. Pure.

The state of the connection comes first and is never left out; on a narrow
terminal names are shortened first, then the rest gives way from the right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

from nplt_client.connection_states import ConnectionState, Offline, Online, Reconnecting
from nplt_client.fullscreen.safe_text import safe_line
from nplt_client.tables import shorten, width_of

LAG_SECONDS_SHOWN = 0.5
_APART = " · "
_NAME_WIDTHS = ((40, 30), (30, 16), (20, 10), (14, 8))
"""Of the model, and of the conversation: the first that leave room for everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFacts:
    connection: ConnectionState = field(default_factory=Online)
    model: str = ""
    name: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    context_percent: float | None = None
    cost: str = ""
    others: tuple[str, ...] = ()
    lag_seconds: float = 0.0
    doing: str = ""
    is_running: bool = False
    waiting: int = 0
    attached: int = 0


def connection_words(connection: ConnectionState) -> str:
    match connection:
        case Online():
            return "● online"
        case Offline():
            return "○ offline"
        case Reconnecting():
            soon = f" in {connection.in_seconds:.0f} s" if connection.in_seconds >= 1 else ""
            return f"◌ reconnecting{soon} (attempt {connection.attempt})"
        case _:
            assert_never(connection)


def status_words(facts: StatusFacts, width: int) -> str:
    words = connection_words(facts.connection)
    parts: list[str] = []
    for model_width, name_width in _NAME_WIDTHS:
        parts = list(_parts(facts, model_width=model_width, name_width=name_width))
        if width_of(_APART.join([words, *parts])) <= width:
            break
    for part in parts:
        if width_of(words + _APART + part) > width:
            break
        words += _APART + part
    return words


def _parts(facts: StatusFacts, *, model_width: int, name_width: int) -> Iterator[str]:
    if facts.is_running:
        doing = shorten(facts.doing, 30) or "answering"
        yield f"{doing} (Esc stops)" if isinstance(facts.connection, Online) else doing
    if facts.waiting:
        yield f"{facts.waiting} waiting"
    if facts.attached:
        yield f"{facts.attached} {'file' if facts.attached == 1 else 'files'} attached"
    if facts.lag_seconds >= LAG_SECONDS_SHOWN:
        yield f"lag {facts.lag_seconds:.1f} s"
    yield safe_line(facts.model, model_width)
    yield safe_line(facts.name or "new conversation", name_width)
    if facts.context_percent is not None:
        yield f"context {facts.context_percent:.0f} %"
    if facts.others:
        shown = ", ".join(facts.others[:3])
        more = f" +{len(facts.others) - 3}" if len(facts.others) > 3 else ""
        yield f"with {shown}{more}"
    if facts.input_tokens or facts.output_tokens:
        yield f"{in_short(facts.input_tokens)} in, {in_short(facts.output_tokens)} out"
    if facts.cost:
        yield safe_line(facts.cost, 20)


def in_short(tokens: int) -> str:
    if tokens < 1_000:
        return str(tokens)
    if tokens < 1_000_000:
        return f"{tokens / 1_000:.1f}k"
    return f"{tokens / 1_000_000:.1f}M"
