"""Rules: what a well-shaped request must also obey, at n-1, n and n+1."""

from __future__ import annotations

import pytest
from tests.protocol.outcomes import refusal_of

from nplt_protocol import (
    ErrorCode,
    FrameDecoder,
    MessageType,
    WireLimits,
    decode_request,
    encode_request,
    from_object,
    messages,
)


def refused_field(request: messages.Request) -> str | None:
    """The field a request is refused for, or None if it may pass."""
    (frame,) = FrameDecoder().receive_data(encode_request(request, 1))
    error = refusal_of(lambda: decode_request(frame.type, frame.payload, WireLimits()))
    if error is None:
        return None
    assert error.code is ErrorCode.MALFORMED
    assert f"`{error.field}`" in error.message
    return error.field


@pytest.mark.parametrize("text", ["", " ", "\n\t ", "\u3000"])
def test_a_blank_prompt_is_refused(text: str) -> None:
    assert refused_field(messages.Prompt(text=text)) == "text"


@pytest.mark.parametrize("session_id", ["a" * 200, "user_123", "my notes / été", "../a"])
def test_a_conversation_is_named_by_its_id_or_its_name(session_id: str) -> None:
    for request in _naming(session_id):
        assert refused_field(request) is None


@pytest.mark.parametrize("session_id", ["", " \n", "a" * 201])
def test_a_blank_or_too_long_session_id_is_refused(session_id: str) -> None:
    for request in _naming(session_id):
        assert refused_field(request) == "session_id"


def _naming(session_id: str) -> tuple[messages.Request, ...]:
    return (
        messages.Hello(session_id=session_id),
        messages.Attach(session_id=session_id),
        messages.SessionSwitch(session_id=session_id),
        messages.SessionDelete(session_id=session_id),
        messages.Prompt(text="x", session_id=session_id),
        messages.HistoryRequest(session_id=session_id),
        messages.SessionFork(session_id=session_id),
    )


def test_names_have_at_most_200_characters_not_bytes() -> None:
    assert refused_field(messages.SessionNew(name="ü" * 200)) is None
    assert refused_field(messages.SessionNew(name="ü" * 201)) == "name"
    assert refused_field(messages.Prompt(text="x", message_id="m" * 200)) is None
    assert refused_field(messages.Prompt(text="x", message_id="m" * 201)) == "message_id"
    assert refused_field(messages.Prompt(text="x", attachments=("f", "f" * 201))) == "attachments"


def test_metadata_of_a_prompt_is_at_most_2048_bytes_as_json() -> None:
    room = 2048 - len('{"k":""}')
    assert refused_field(messages.Prompt(text="x", metadata={"k": "v" * room})) is None
    assert refused_field(messages.Prompt(text="x", metadata={"k": "v" * (room + 1)})) == "metadata"


@pytest.mark.parametrize("field", ["before", "after", "around", "seq", "offset", "length"])
def test_history_cursors_are_not_negative(field: str) -> None:
    assert refused_field(from_object(messages.HistoryRequest, {field: 0})) is None
    negative = b'{"%s":-1}' % field.encode()
    error = refusal_of(lambda: decode_request(MessageType.HISTORY_REQUEST, negative, WireLimits()))
    assert error is not None
    assert error.message == f"`{field}` must be at least 0."


def test_a_page_has_at_least_one_message_and_large_limits_are_the_servers_to_clamp() -> None:
    assert refused_field(messages.HistoryRequest(limit=0)) == "limit"
    assert refused_field(messages.HistoryRequest(limit=1)) is None
    assert refused_field(messages.HistoryRequest(limit=10**9)) is None


@pytest.mark.parametrize(
    ("request_", "second"),
    [
        (messages.HistoryRequest(before=1, after=2), "after"),
        (messages.HistoryRequest(before=1, around=2), "around"),
        (messages.HistoryRequest(after=0, around=0), "around"),
        (messages.Import(file_id="f", document={}), "document"),
    ],
)
def test_fields_that_exclude_each_other_are_refused_together(
    request_: messages.Request, second: str
) -> None:
    assert refused_field(request_) == second


def test_an_upload_has_a_name_and_a_size_that_is_not_negative() -> None:
    assert refused_field(messages.FileMetadata(filename="a", size=0)) is None
    assert refused_field(messages.FileMetadata(filename="a", size=-1)) == "size"
    assert refused_field(messages.FileMetadata(filename="", size=1)) == "filename"
    assert refused_field(messages.FileMetadata(filename="a" * 256, size=1)) == "filename"


def test_session_update_can_undelete_but_not_delete() -> None:
    assert refused_field(messages.SessionUpdate(session_id="a", deleted=False)) is None
    assert refused_field(messages.SessionUpdate(session_id="a", deleted=True)) == "deleted"


@pytest.mark.parametrize("inner", ["1", "[]", "{}", '"x"', "null"])
def test_list_elements_count_like_json_keys(inner: str) -> None:
    limits = WireLimits(json_keys_max=1, prompt_json_keys_max=10)
    for count, is_refused in ((8, False), (9, True)):  # `text` and `ignored` are two more
        listed = ",".join([inner] * count)
        payload = f'{{"text": "x", "ignored": [{listed}]}}'.encode()
        error = refusal_of(lambda: decode_request(MessageType.PROMPT, payload, limits))  # noqa: B023
        assert (error is not None) == is_refused
        if error is not None:
            assert error.message == "The JSON holds more than 10 keys and list elements."
