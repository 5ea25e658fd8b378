"""What a well-shaped request must also obey: lengths, ranges, one of several.

`RULES` can be read aloud, class by class. A rule says what is wrong with one
field's value, or nothing; a value that was not said has nothing wrong with
it. Whether a conversation or a model exists is the server's to know.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from nplt_protocol import requests as ask
from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_text import dump_json

NAME_CHARS_MAX = 200
FILENAME_CHARS_MAX = 255
CURSOR_CHARS_MAX = 1_000
TOKEN_CHARS_MAX = 1_000
METADATA_BYTES_MAX = 2_048
SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")

Rule: TypeAlias = "Callable[[Any], str | None]"


def check_rules(request: ask.Request) -> None:
    for field, rules in RULES.get(type(request), {}).items():
        value = getattr(request, field)
        if value is None:
            continue
        for rule in rules:
            complaint = rule(value)
            if complaint is not None:
                raise _refused(field, complaint)
    for fields in ONE_AT_MOST.get(type(request), ()):
        said = [field for field in fields if getattr(request, field) is not None]
        if len(said) > 1:
            raise _refused(said[1], f"can't be combined with `{said[0]}`")


def _refused(field: str, complaint: str) -> RequestError:
    return RequestError(ErrorCode.MALFORMED, f"`{field}` {complaint}.", field=field)


def at_most(chars: int) -> Rule:
    def rule(value: str) -> str | None:
        return f"has more than {chars:,} characters" if len(value) > chars else None

    return rule


def at_least(bound: int) -> Rule:
    def rule(value: float) -> str | None:
        return f"must be at least {bound}" if value < bound else None

    return rule


def not_blank(value: str) -> str | None:
    return None if value.strip() else "must not be blank"


def a_session_id(value: str) -> str | None:
    return None if SESSION_ID.fullmatch(value) else "is not a session id"


def small_json(value: Any) -> str | None:
    if len(dump_json(value)) > METADATA_BYTES_MAX:
        return f"is larger than {METADATA_BYTES_MAX:,} bytes as JSON"
    return None


def each(rule: Rule) -> Rule:
    def rule_for_all(values: tuple[Any, ...]) -> str | None:
        return next((complaint for value in values if (complaint := rule(value))), None)

    return rule_for_all


def only_false(value: bool) -> str | None:
    return "can only be taken back (false); SESSION_DELETE deletes" if value else None


A_NAME = (at_most(NAME_CHARS_MAX),)
A_WORD = (not_blank, at_most(NAME_CHARS_MAX))
AN_ID = (a_session_id,)
A_CURSOR = (at_most(CURSOR_CHARS_MAX),)
A_COUNT = (at_least(0),)
AT_LEAST_ONE = (at_least(1),)

RULES: dict[type[ask.Request], dict[str, tuple[Rule, ...]]] = {
    ask.Hello: {
        "client": A_NAME,
        "token": (at_most(TOKEN_CHARS_MAX),),
        "keepalive": A_COUNT,
    },
    ask.Cancel: {"turn_id": A_NAME},
    ask.Prompt: {
        "text": (not_blank,),
        "message_id": A_WORD,
        "session_id": AN_ID,
        "model": A_WORD,
        "role": A_NAME,
        "metadata": (small_json,),
        "attachments": (each(at_most(NAME_CHARS_MAX)),),
        "replace_from": AT_LEAST_ONE,
    },
    ask.Attach: {
        "session_id": AN_ID,
        "after_seq": A_COUNT,
        "turn_id": A_NAME,
        "call": A_COUNT,
        "offset": A_COUNT,
    },
    ask.FileMetadata: {
        "filename": (not_blank, at_most(FILENAME_CHARS_MAX)),
        "size": A_COUNT,
        "content_type": A_NAME,
    },
    ask.ModelSwitch: {"model": A_WORD},
    ask.HistoryRequest: {
        "session_id": AN_ID,
        "before": A_COUNT,
        "after": A_COUNT,
        "around": A_COUNT,
        "limit": AT_LEAST_ONE,
        "max_bytes": A_COUNT,
        "seq": A_COUNT,
        "offset": A_COUNT,
        "length": A_COUNT,
    },
    ask.SessionList: {"limit": AT_LEAST_ONE, "cursor": A_CURSOR, "query": A_CURSOR},
    ask.SessionSwitch: {"session_id": A_WORD},
    ask.SessionNew: {"name": A_NAME, "model": A_WORD, "history": A_NAME},
    ask.SessionDelete: {"session_id": AN_ID},
    ask.SessionUpdate: {"session_id": AN_ID, "name": A_NAME, "deleted": (only_false,)},
    ask.SessionFork: {"session_id": AN_ID, "at_seq": A_COUNT, "name": A_NAME},
    ask.Search: {"query": (not_blank, *A_CURSOR), "limit": AT_LEAST_ONE, "cursor": A_CURSOR},
    ask.ContextRequest: {"session_id": AN_ID, "model": A_WORD},
    ask.Approval: {"approval_id": A_NAME},
    ask.Compact: {"session_id": AN_ID},
    ask.Tools: {"session_id": AN_ID},
    ask.Usage: {"session_id": AN_ID},
    ask.FileGet: {"file_id": A_NAME, "session_id": AN_ID, "offset": A_COUNT, "length": A_COUNT},
    ask.Import: {"file_id": A_NAME},
    ask.Rollback: {"to_seq": A_COUNT, "session_id": AN_ID},
    ask.Redact: {"seq": AT_LEAST_ONE, "session_id": AN_ID},
}

ONE_AT_MOST: dict[type[ask.Request], tuple[tuple[str, ...], ...]] = {
    ask.HistoryRequest: (("before", "after", "around"),),
    ask.Import: (("file_id", "document"),),
}
