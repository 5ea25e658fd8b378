"""A message too large for its place is cut to fit, and says so."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.entry_strategies import json_objects, texts

from nplt_storage.json_values import JsonObject
from nplt_storage.pages import cut_message_to_fit, size_as_json


def _message(content: str, *, result: str = "", arguments: Any = None) -> JsonObject:
    tool_call: JsonObject = {"tool_name": "look", "arguments": arguments or {}, "result": result}
    return {
        "seq": 1,
        "content": content,
        "tool_calls": [tool_call] if result or arguments else [],
        "metadata": {},
    }


def _only_call(message: JsonObject) -> JsonObject:
    calls = message["tool_calls"]
    assert isinstance(calls, list)
    (only,) = calls
    assert isinstance(only, dict)
    return only


def test_a_message_that_fits_is_left_alone() -> None:
    message = _message("hello")
    assert cut_message_to_fit(message, size_as_json(message)) is message


@given(st.text(min_size=400, max_size=600), st.integers(150, 300))
def test_a_long_content_is_cut_at_a_code_point_as_late_as_possible(text: str, size: int) -> None:
    message = _message(text.encode("utf-8", "replace").decode())
    whole = str(message["content"])
    cut = cut_message_to_fit(message, size)
    assert cut["truncated"] is True
    assert cut["size"] == len(whole)
    content = str(cut["content"])
    assert whole.startswith(content)
    assert size_as_json(cut) <= size
    longer = cut | {"content": whole[: len(content) + 1]}
    assert size_as_json(longer) > size


def test_a_long_result_leaves_room_for_the_content() -> None:
    cut = cut_message_to_fit(_message("short", result="x" * 10_000), 300)
    assert cut["content"] == "short"
    assert cut["truncated"] is True
    tool_call = _only_call(cut)
    assert tool_call["truncated"] is True
    assert tool_call["size"] == 10_000
    assert 0 < len(str(tool_call["result"])) < 300


def test_arguments_too_large_to_show_are_left_out() -> None:
    cut = cut_message_to_fit(_message("short", result="seen", arguments={"a": "x" * 10_000}), 300)
    assert cut["content"] == "short"
    tool_call = _only_call(cut)
    assert (tool_call["arguments"], tool_call["result"]) == ({}, "seen")


@settings(max_examples=60)
@given(texts, texts, json_objects, json_objects, st.integers(0, 400))
def test_what_is_cut_fits_if_anything_can(
    content: str, result: str, arguments: JsonObject, metadata: JsonObject, size: int
) -> None:
    message = _message(content, result=result, arguments=arguments)
    message["metadata"] = metadata
    cut = cut_message_to_fit(message, size)
    barest: JsonObject = {"seq": 1, "content": "", "tool_calls": [], "metadata": {}}
    smallest = size_as_json(barest | {"truncated": True, "size": len(content)})
    assert size_as_json(cut) <= max(size, smallest)
    assert cut["seq"] == 1
    assert content.startswith(str(cut["content"]))


def test_a_bracket_counts_as_many_bytes_as_bracket_bytes_says() -> None:
    cut = cut_message_to_fit(_message("[" * 1000), 400, bracket_bytes=6)
    assert len(orjson.dumps(cut).replace(b"[", b"\\u005b")) <= 400
    assert len(str(cut["content"])) > 40


def test_levels_of_detail_go_before_the_words_do() -> None:
    sections: JsonObject = {"gist": [["", "x" * 10_000]]}
    message = _message("short", result="seen")
    message["sections"] = _only_call(message)["sections"] = sections
    cut = cut_message_to_fit(message, 300)
    assert (cut["content"], cut["sections"]) == ("short", {})
    assert _only_call(cut)["result"] == "seen"


def test_the_state_of_a_widget_may_go_and_that_of_an_answer_stays() -> None:
    widget, answer = _message(""), _message("")
    widget["state"] = {"items": "x" * 10_000}
    answer |= {"state": "completed", "usage": {"odd": "x" * 10_000}}
    assert cut_message_to_fit(widget, 300)["state"] == {}
    assert cut_message_to_fit(answer, 300)["state"] == "completed"


def test_a_live_screen_is_cut_like_any_text() -> None:
    cut = cut_message_to_fit(_message("") | {"screen": "y" * 10_000}, 300)
    assert size_as_json(cut) <= 300
    assert len(str(cut["screen"])) > 100


def test_the_original_is_not_changed() -> None:
    message = _message("x" * 1000, result="y" * 1000)
    before = orjson.dumps(message)
    cut_message_to_fit(message, 200)
    assert orjson.dumps(message) == before
