"""Light and dark; for the terminal's own sixteen colours textual has a theme."""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="dark",
    primary="#7aa2f7",
    secondary="#bb9af7",
    accent="#7dcfff",
    warning="#e0af68",
    error="#f7768e",
    success="#9ece6a",
    foreground="#c8d0e8",
    background="#16161e",
    surface="#1d1f2b",
    panel="#272a3a",
    dark=True,
)
LIGHT = Theme(
    name="light",
    primary="#2e5cb8",
    secondary="#7a3fb0",
    accent="#0b7285",
    warning="#8f5e00",
    error="#b3243b",
    success="#2f6f2f",
    foreground="#24283b",
    background="#fbfbfd",
    surface="#eff0f6",
    panel="#e3e5ef",
    dark=False,
)
