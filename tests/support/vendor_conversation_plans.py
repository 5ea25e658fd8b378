"""Everything that may happen to a conversation, as hypothesis draws it."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st
from tests.support.vendor_conversations import CHANGES, MODELS, Break, TurnPlan
from tests.vendors import Part, Refusal, Text, Thinking, ToolCall

_PARTS: st.SearchStrategy[Part] = st.sampled_from(
    [
        Text("yes"),
        Text(" \n"),
        Text("a\0b é👋 \u200d"),
        Text("word " * 200),
        Thinking("hm"),
        Thinking("", redacted=True),
        ToolCall("look", '{"at": "x"}'),
        ToolCall("look", '{"at": 1.0, "\\u0000": [1e400]}'),
        ToolCall("look", "{broken"),
        ToolCall("look", '{"at": "\\ud83d"}'),
        ToolCall("now", ""),
        ToolCall("not/offered", "[]"),
        Refusal("no"),
    ]
)
_ANSWERS = st.lists(_PARTS, min_size=1, max_size=4).map(tuple)
_BREAKS: Final = st.none() | st.builds(
    Break,
    st.sampled_from(["cancel", "crash", "fail", "no_end"]),
    call=st.sampled_from([0, 0, 1]),
    share=st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.8, 0.99]),
    in_tool=st.booleans(),
)
_TURNS = st.builds(
    TurnPlan,
    model=st.sampled_from(MODELS),
    prompt=st.sampled_from(["and now?", "tell " * 300, "\0", "…\u200d", "  x"]),
    thinks=st.booleans(),
    answers=st.lists(_ANSWERS, max_size=2).map(tuple),
    broken=_BREAKS,
    before=st.sampled_from([None, None, *CHANGES]),
    waits_behind=st.sampled_from([False, False, True]),
)
life_plans: Final = st.tuples(
    st.lists(_TURNS, min_size=1, max_size=5), st.sampled_from([4_000, 8_000, 128_000])
)
"""The turns, and how many tokens the models' windows have."""
