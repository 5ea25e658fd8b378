"""The full-screen chat. Loaded only by `nplt chat` on a real terminal.

    events ─ story ─▶ changes ─ gathering ─▶ transcript (a view per turn)
    keys   ─ composer ─▶ app ─ commands ─▶ client

What can be decided without a terminal is decided in plain classes (`story`,
`course`, `recall`, `completion`, `picking`, `status`); widgets only show it.
Whatever comes from outside is made safe in `story` and `told` before any widget
sees it, and is handed on as plain text, never as markup.
"""
