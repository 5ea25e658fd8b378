"""Brackets that version 2 clients would take for markup.

They print one-frame replies as Rich markup: `[abc]` vanishes and an unmatched
`[/x]` kills them. No `[` followed by a letter, `#`, `/` or `@` may reach them
there: in prose it gets a space behind it, in JSON it is written `\\u005b`
inside strings and with a space behind it elsewhere.
"""

from __future__ import annotations

import re

_TAG = re.compile(r"\[(?=[^\W\d_]|[#/@])")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|\[')


def without_markup(text: str) -> str:
    return _TAG.sub("[ ", text)


def json_without_markup(document: str) -> str:
    """The same JSON value, written without a bracket that could be a tag."""
    return _STRING_OR_BRACKET.sub(_escape, document)


def _escape(match: re.Match[str]) -> str:
    token = match.group()
    return "[ " if token == "[" else token.replace("[", "\\u005b")
