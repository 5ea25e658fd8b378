"""What the person wants who starts a chat, in lines or full screen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOrder:
    server: str | None = None
    go_on: bool = False
    resume: str | None = None
    new: bool = False
    model: str | None = None
