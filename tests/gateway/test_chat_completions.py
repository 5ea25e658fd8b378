"""`POST /v1/chat/completions` without a conversation, with OpenAI's own library and with bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import openai
import pytest
from openai import OpenAI
from tests.gateway.http_client import Answer, connect, read_all, request
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
ECHO = "offline/echo"
HELLO: Any = [{"role": "user", "content": "hello there"}]


@pytest.fixture(scope="module")
def url(shared_server: ServerProcess) -> str:
    return f"{shared_server.http_url}v1/chat/completions"


@pytest.fixture(scope="module")
def client(shared_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{shared_server.http_url}v1", api_key="any", max_retries=0) as client:
        yield client


def complete(url: str, **fields: Any) -> Answer:
    return request(url, "POST", body={"model": ECHO, "messages": HELLO, **fields})


def test_models_are_listed_and_found_by_their_whole_names(
    client: OpenAI, shared_server: ServerProcess
) -> None:
    assert ECHO in [model.id for model in client.models.list()]
    assert client.models.retrieve(ECHO).owned_by == "offline"
    assert request(f"{shared_server.http_url}v1/models/offline%2Fecho").json["id"] == ECHO
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("nobody/nothing")
    assert missing.value.code == "model_not_found"


def test_a_completion_answers_and_says_that_it_is_not_recorded(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model=ECHO, messages=HELLO)
    assert raw.headers["x-nplt-recorded"] == "false"
    answer = raw.parse()
    assert answer.choices[0].message.content == "hello there"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == ECHO
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 2


def test_a_stream_gives_the_same_text_and_ends_with_usage(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=ECHO, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks: list[Any] = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "hello there"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 2)
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_without_include_usage_has_no_usage_and_ends_with_done(url: str) -> None:
    answer = complete(url, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.body.decode().strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    assert all("usage" not in json.loads(event[6:]) for event in events[:-1])


def test_all_earlier_messages_reach_the_model(url: str) -> None:
    messages = [
        {"role": "system", "content": "one two three"},
        {"role": "user", "content": [{"type": "text", "text": "four"}]},
        {"role": "assistant", "content": "five"},
        *HELLO,
    ]
    usage = complete(url, messages=messages).json["usage"]
    assert usage["prompt_tokens"] == 7


def test_reasoning_has_a_field_of_its_own(url: str) -> None:
    answer = complete(url, messages=[{"role": "user", "content": "!think hm so"}])
    message = answer.json["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm so", "hm so")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_of_the_clients_tool_comes_back_and_its_result_is_taken(
    client: OpenAI, *, stream: bool
) -> None:
    asked: list[Any] = [{"role": "user", "content": '!tool look {"at": "it"}'}]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    given: dict[str, Any] = {"model": ECHO, "messages": asked, "tools": tools}
    if stream:
        with client.chat.completions.stream(**given) as events:
            choice: Any = events.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**given).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"at": "it"})
    called = {"role": "assistant", "tool_calls": [call.model_dump()]}
    seen = {"role": "tool", "tool_call_id": call.id, "content": "a tree"}
    given["messages"] = [*asked, called, seen]
    assert client.chat.completions.create(**given).choices[0].message.content == "a tree"


def test_a_schema_shapes_the_answer(url: str) -> None:
    schema = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    answer = complete(
        url,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert "word" in json.loads(answer.json["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
        ({"temperature": 3}, "temperature"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"audio": {"voice": "x"}}, "audio"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}],
                    }
                ]
            },
            "messages.0.content.0.image_url",
        ),
    ],
)
def test_a_field_that_can_not_be_obeyed_is_refused_by_its_name(
    url: str, fields: dict[str, Any], param: str
) -> None:
    answer = complete(url, **fields)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert answer.error["type"] == "invalid_request_error"


def test_a_picture_for_a_model_that_takes_none_is_refused(url: str) -> None:
    picture = f"data:image/png;base64,{base64.b64encode(b'png').decode()}"
    part = {"type": "image_url", "image_url": {"url": picture}}
    answer = complete(url, messages=[{"role": "user", "content": [part]}])
    assert (answer.status, answer.error["code"]) == (400, "unsupported_file")


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="offline/nothing", messages=HELLO)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_call_is_an_error_with_a_status(url: str, *, stream: bool) -> None:
    answer = complete(url, messages=[{"role": "user", "content": "!fail"}], stream=stream)
    assert answer.status == 502
    assert answer.error["code"] == "provider_unavailable"


def test_other_endpoints_of_openai_are_named_in_the_refusal(shared_server: ServerProcess) -> None:
    answer = request(f"{shared_server.http_url}v1/embeddings", "POST", body={})
    assert answer.status == 404
    assert "embeddings" in answer.error["message"]


def test_a_wrong_method_is_refused(url: str) -> None:
    assert request(url).status == 405


@pytest.mark.parametrize("words", [4, 20_000], ids=["short", "long"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_goes_away_ends_its_call(
    start_server: Start, *, stream: bool, words: int
) -> None:
    server = start_server(limits={"turns_max": 1})
    url = f"{server.http_url}v1/chat/completions"
    text = f"!slow 3600 {'word ' * words}"
    body = json.dumps({"stream": stream, "messages": [{"role": "user", "content": text}]})
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with connect(server.http_url) as sock:
        sock.sendall(head.encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 100")  # the server waits for the body
        sock.sendall(body.encode())
        if stream:
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
    assert complete(url).status == 200  # there is one slot, and it is free again


def test_a_rate_limited_user_gets_429_with_retry_after(start_server: Start) -> None:
    token = {"name": "ada", "token_sha256": sha256(b"secret").hexdigest()}
    server = start_server(users=[token], limits={"prompts_per_minute_max": 1})
    url, headers = f"{server.http_url}v1/chat/completions", {"authorization": "Bearer secret"}
    body = {"messages": HELLO}
    assert request(url, "POST", body=body).status == 401
    assert request(url, "POST", body=body, headers=headers).status == 200
    refused = request(url, "POST", body=body, headers=headers)
    assert (refused.status, refused.error["type"]) == (429, "rate_limit_error")
    assert int(refused.headers["retry-after"]) > 0


@pytest.mark.parametrize("place", ["v1", "c/stopped/v1"])
def test_a_stream_ends_when_the_server_stops(start_server: Start, place: str) -> None:
    server = start_server(limits={"drain_seconds_max": 1})
    body = json.dumps(
        {"stream": True, "messages": [{"role": "user", "content": "!slow 3600 a b c d"}]}
    )
    head = (
        f"POST /{place}/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with connect(server.http_url) as sock:
        sock.sendall((head + body).encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        assert server.terminate() == 0
        rest = read_all(sock)
    assert b"[DONE]" not in rest
    assert b'"error"' in rest
