"""Markdown from models and people as HTML that can do nothing.

Raw HTML is escaped. Links have harmless schemes only, and pictures become links, since showing one
would report that the text was read. Invisible characters are made visible. The exported page of
the client and the page of the gateway use the same functions, so both show the same HTML.

`markdown_it` and `pygments` are loaded by the first text that needs them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from nplt_markdown.highlight import highlighted

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token

MARKDOWN_CHARACTERS_MAX = 400_000
"""Longer text is not parsed as Markdown."""
_NESTING_MAX = 60
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
_SCHEMES = ("http://", "https://", "mailto:")
_TASK = re.compile(r"\[([ xX])\] ")


def visible(text: str) -> str:
    text = text.replace("\r\n", "\n")
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text)


def plain(text: str) -> str:
    """Escapes text for one line or an attribute."""
    return escape(visible(text))


def preformatted(text: str) -> str:
    return f"<pre>\n{plain(text)}</pre>"  # HTML drops a newline right after <pre>


def prose(text: str) -> str:
    if len(text) > MARKDOWN_CHARACTERS_MAX:
        return preformatted(text)
    return str(_markdown().render(visible(text)))


class Block(NamedTuple):
    """A paragraph, list, table or the like that stands at the top level of a text."""

    lines: int
    """How many lines of the text it takes, with the blank lines after it."""
    html: str


def blocks(text: str) -> list[Block]:
    """Renders each block of the text for itself. Joined, they are the text's HTML; all but the last
    stay as they are if more lines follow."""
    env: dict[str, Any] = {}
    reader, shown = _markdown(), visible(text)
    tokens = reader.parse(shown, env)
    starts = [at for at, token in enumerate(tokens) if token.level == 0 and token.nesting >= 0]
    if not starts:
        return [Block(shown.count("\n") + 1, "")]
    first_lines = [(tokens[at].map or [0])[0] for at in starts]
    ends = [*first_lines[1:], shown.count("\n") + 1]
    previous, found = 0, []
    for start, end, last in zip(starts, [*starts[1:], len(tokens)], ends, strict=True):
        html = reader.renderer.render(tokens[start:end], reader.options, env)
        found.append(Block(last - previous, html))
        previous = last
    return found


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": _NESTING_MAX})
    reader.enable(["table", "strikethrough"])
    reader.validateLink = lambda url: url.lower().startswith(_SCHEMES)  # type: ignore[method-assign]
    reader.core.ruler.push("tasks", _find_tasks)
    for kind in ("image", "link_open", "th_open", "td_open", "fence", "task"):
        reader.add_render_rule(kind, _render)
    return reader


def _find_tasks(state: StateCore) -> None:
    """Puts a `task` token before the text of each list item that begins with `[ ]` or `[x]`."""
    tokens = state.tokens
    for item, token in zip(tokens, tokens[2:], strict=False):
        if item.type != "list_item_open" or token.type != "inline" or not token.children:
            continue
        first = token.children[0]
        found = _TASK.match(first.content) if first.type == "text" else None
        if found is not None:
            first.content = first.content[found.end() :]
            task = type(token)("task", "span", 0, content=found[1].lower())
            token.children.insert(0, task)


def _render(
    renderer: RendererHTML, tokens: Sequence[Token], at: int, options: Any, env: Any
) -> str:
    token = tokens[at]
    url = str(token.attrs.get("src") or token.attrs.get("href") or "")
    link = f'<a href="{escape(url)}" rel="noopener noreferrer">'
    if token.type == "link_open":
        return link
    if token.type == "image":
        alt = renderer.renderInlineAsText(token.children, options, env) or url
        return f"{link}picture: {escape(alt)}</a>"
    if token.type == "fence":
        language = (token.info.split() or [""])[0]
        named = f' class="language-{escape(language)}"' if language else ""
        return f"<pre><code{named}>{highlighted(token.content, language)}</code></pre>\n"
    if token.type == "task":
        box, state = ("☑", "done") if token.content == "x" else ("☐", "open")
        return f'<span class="task" role="img" aria-label="{state}">{box}</span> '
    # Columns are aligned by a class, since the policy forbids inline styles.
    side = str(token.attrs.get("style", "")).removeprefix("text-align:")
    aligned = f' class="{side}"' if side in ("right", "center") else ""
    return f"<{token.tag}{aligned}>"
