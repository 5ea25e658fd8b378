"""Text from outside as HTML that can do nothing.

Everything is escaped; Markdown is read with HTML switched off. A picture is
shown as a link, for a page must not tell strangers that it was opened. Links
lead to the web or to a mailbox, or they are no links. Characters that nobody
sees but that change what is read (controls, reversed writing) are made visible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML
    from markdown_it.token import Token

MARKDOWN_CHARACTERS_MAX = 400_000
"""Longer than anyone reads as prose; shown as it is."""
_NESTING_MAX = 60
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
_SCHEMES = ("http://", "https://", "mailto:")


def visible(text: str) -> str:
    text = text.replace("\r\n", "\n")
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text)


def plain(text: str) -> str:
    """For one line, and for attributes."""
    return escape(visible(text))


def preformatted(text: str) -> str:
    return f"<pre>\n{escape(visible(text))}</pre>"  # a first line end of its own is dropped


def prose(text: str) -> str:
    if len(text) > MARKDOWN_CHARACTERS_MAX:
        return preformatted(text)
    return str(_markdown().render(visible(text)))


def leads_somewhere_harmless(url: str) -> bool:
    return url.lower().startswith(_SCHEMES)


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": _NESTING_MAX})
    reader.enable(["table", "strikethrough"])
    reader.validateLink = leads_somewhere_harmless  # type: ignore[method-assign]
    reader.add_render_rule("image", _picture)
    reader.add_render_rule("link_open", _link)
    reader.add_render_rule("th_open", _cell)
    reader.add_render_rule("td_open", _cell)
    return reader


def _picture(
    renderer: RendererHTML, tokens: Sequence[Token], at: int, options: Any, env: Any
) -> str:
    token = tokens[at]
    url = str(token.attrs.get("src", ""))
    alt = renderer.renderInlineAsText(token.children, options, env) or url
    return f'<a href="{escape(url)}" rel="noopener noreferrer">picture: {escape(alt)}</a>'


def _link(renderer: RendererHTML, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    url = escape(str(tokens[at].attrs.get("href", "")))
    return f'<a href="{url}" rel="noopener noreferrer">'


def _cell(renderer: RendererHTML, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    """Columns are aligned by a class: styles of its own are forbidden to the page."""
    style = str(tokens[at].attrs.get("style", ""))
    side = style.removeprefix("text-align:")
    return (
        f'<{tokens[at].tag} class="{side}">'
        if side in ("right", "center")
        else f"<{tokens[at].tag}>"
    )
