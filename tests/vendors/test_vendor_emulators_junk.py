"""Whatever is sent is admitted or refused; an emulator that breaks would hide a rule."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.vendors.answers import ApiName
from tests.vendors.claude_requests import ONE_CALL, result, text, user, with_tools
from tests.vendors.emulator import Emulator
from tests.vendors.rejections import Rejection

SCHEMA = {"type": "object", "properties": {"at": {}}, "required": ["at"]}
CALLED = {"name": "look", "arguments": "{}"}
CHAT: dict[str, Any] = {
    "model": "gpt-4.1",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": CALLED}]},
        {"role": "tool", "tool_call_id": "a", "content": "seen"},
    ],
    "tools": [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}],
}
RESPONSES: dict[str, Any] = {
    "model": "gpt-4.1",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "function_call", "call_id": "a", **CALLED},
        {"type": "function_call_output", "call_id": "a", "output": "seen"},
    ],
    "tools": [{"type": "function", "strict": False, "name": "look", "parameters": SCHEMA}],
}
MESSAGES = with_tools(
    *ONE_CALL,
    user([result(content=[text("seen")])]),
    system=[text("be brief", cache_control={"type": "ephemeral"})],
    thinking={"type": "disabled"},
    tool_choice={"type": "auto"},
)
GOOD: list[tuple[ApiName, Any]] = [
    ("chat", CHAT),
    ("responses", RESPONSES),
    ("messages", MESSAGES),
]
SCALARS = st.sampled_from([None, True, 0, -1, 1.5, "", "x", "\n", "text", 10**30])
JUNK = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["type", "role", "content", "id"]), inner, max_size=2)
    ),
    max_leaves=3,
)


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything inside, the whole included."""
    yield path
    inner = value.items() if isinstance(value, dict) else ()
    for name, each in enumerate(value) if isinstance(value, list) else inner:
        yield from places(each, (*path, name))


def with_junk(body: Any, path: tuple[Any, ...], junk: object) -> object:
    if not path:
        return junk
    changed = copy.copy(body)
    changed[path[0]] = with_junk(body[path[0]], path[1:], junk)
    return changed


@given(st.data(), JUNK, st.sampled_from(GOOD))
def test_junk_anywhere_is_refused_or_admitted(
    data: st.DataObject, junk: object, good: tuple[ApiName, Any]
) -> None:
    name, body = good
    path = data.draw(st.sampled_from(list(places(body))))
    with suppress(Rejection):
        Emulator().api(name).admit(with_junk(body, path, junk))
