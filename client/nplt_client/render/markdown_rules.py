"""Rules for the Markdown parser of the chats, which show models' answers in a terminal.

Models write Markdown by hand, and people read it on a narrow screen. So line breaks stay where
they were written, boxes of task lists are drawn, and the target of a link stands next to its text.
"""

from __future__ import annotations

from collections.abc import Iterator

from markdown_it.rules_core import StateCore
from markdown_it.token import Token

BOXES = {"[ ] ": "☐ ", "[x] ": "☑ ", "[X] ": "☑ "}


def keep_line_breaks(state: StateCore) -> None:
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type, child.tag = "hardbreak", "br"


def draw_boxes(state: StateCore) -> None:
    """Replaces `[ ]` and `[x]` at the beginning of a list item, and marks the item as a task."""
    tokens = state.tokens
    for item, _, inline in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if item.type != "list_item_open" or inline.type != "inline" or not inline.children:
            continue
        first = inline.children[0]
        box = BOXES.get(first.content[:4]) if first.type == "text" else None
        if box is not None:
            first.content = box + first.content[4:]
            item.meta["is_task"] = True


def show_link_targets(state: StateCore) -> None:
    for token in state.tokens:
        if token.children:
            token.children = list(_with_targets(token.children))


def _with_targets(children: list[Token]) -> Iterator[Token]:
    target, text = "", ""
    for child in children:
        yield child
        match child.type:
            case "link_open":
                target, text = str(child.attrs.get("href", "")), ""
            case "link_close":
                if target and target.removeprefix("mailto:") not in (text, f"http://{text}"):
                    yield _text(f" ({target})")
                target = ""
            case "image":
                yield _text(f" ({child.attrs.get('src', '')})")
            case _:
                text += child.content


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)
