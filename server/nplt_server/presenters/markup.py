"""What version 2 clients, or the terminals they print to, would take for more than text.

They print one-frame replies as Rich markup: `[abc]` vanishes and an unmatched
`[/x]` kills them. No `[` followed by a letter, `#`, `/` or `@` may reach them
there: in prose it gets a space behind it, in JSON it is written `\\u005b`
inside strings and with a space behind it elsewhere. Characters that command a
terminal become spaces; line ends and tabs stay.
"""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_TAG = re.compile(r"\[(?=[^\W\d_]|[#/@])")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|\[')


def harmless(text: str) -> str:
    return without_markup(without_controls(text))


def without_controls(text: str) -> str:
    return _CONTROLS.sub(" ", text)


def without_markup(text: str) -> str:
    return _TAG.sub("[ ", text)


def json_without_markup(document: str) -> str:
    """The same JSON value, written without a bracket that could be a tag."""
    return _STRING_OR_BRACKET.sub(_escape, document)


def _escape(match: re.Match[str]) -> str:
    token = match.group()
    return "[ " if token == "[" else token.replace("[", "\\u005b")
