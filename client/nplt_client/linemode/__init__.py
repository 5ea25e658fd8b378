"""The chat in the terminal's own scrollback: `nplt chat --no-alt-screen`.

    events ─ story ─▶ changes ─ telling ─▶ paper   (printed once, stays for good)
                                     └──▶ margin   (redrawn: what is not finished yet)
    keys   ─ composer ─▶ chat ─ commands ─▶ client

Being in a conversation is the same as in the full-screen chat, and so are its
words: `visit`, `story`, `changes`, `commands` and `completion` are shared, none
of which needs a screen. Only this package loads prompt_toolkit and rich. What
comes from outside was made safe in `story`, before either of them sees it.
"""
