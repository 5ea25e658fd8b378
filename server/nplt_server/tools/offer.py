"""The tools offered with a call, as one value: providers cache what they were offered,
so whether it is still the same must be told at a glance."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import orjson

from nplt_server.tools.base import ToolDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOffer:
    descriptions: tuple[ToolDescription, ...] = ()
    digest: str = ""
    texts: tuple[str, ...] = ()
    """What each takes of a model's window, whatever format it is sent in."""


def offer_of(descriptions: tuple[ToolDescription, ...]) -> ToolOffer:
    if not descriptions:
        return ToolOffer()
    texts = tuple(_as_text(one) for one in descriptions)
    digest = sha256("\n".join(texts).encode()).hexdigest()[:16]
    return ToolOffer(descriptions=descriptions, digest=digest, texts=texts)


def _as_text(tool: ToolDescription) -> str:
    said = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return orjson.dumps(said).decode()
