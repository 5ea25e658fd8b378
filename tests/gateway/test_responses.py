"""`/v1/responses` with OpenAI's own library: a response is a turn, and can be resumed anywhere."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI
from tests.conftest import Connect
from tests.gateway.http_client import connect, request
from tests.support.raw_client import HISTORY_REQUEST, TURN_FINISHED
from tests.support.server_process import ServerProcess

from nplt_server.context.messages import ModelOutputMessage
from nplt_server.providers import (
    LlmRequest,
    OpaquePiece,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
)
from nplt_server.providers.offline import Piece

Start = Callable[..., ServerProcess]
ECHO = "offline/echo"
TOOLS = ("look", "listen")
THOUGHT = "!think one two thrée four"


@pytest.fixture(scope="module")
def client(shared_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=f"{shared_server.http_url}v1", api_key="any", max_retries=0, timeout=30
    ) as client:
        yield client


def ask(client: OpenAI, text: Any, **fields: Any) -> Any:
    return client.responses.create(model=ECHO, input=text, **fields)


def resumed(client: OpenAI, response_id: str, **query: Any) -> list[Any]:
    with client.responses.retrieve(response_id, stream=True, **query) as stream:
        return list(stream)


def texts(events: list[Any]) -> dict[str, str]:
    """The deltas of each kind, joined."""
    joined: dict[str, str] = {}
    for event in events:
        if event.type.endswith(".delta"):
            joined[event.type] = joined.get(event.type, "") + event.delta
    return joined


def test_a_response_begins_a_conversation_and_can_be_read_again(client: OpenAI) -> None:
    made = ask(client, "hello there", metadata={"from": "a test"})
    assert (made.status, made.output_text) == ("completed", "hello there")
    assert made.usage.output_tokens == 2
    again = client.responses.retrieve(made.id)
    assert again.model_dump(exclude={"previous_response_id"}) == made.model_dump(
        exclude={"previous_response_id"}
    )
    assert again.metadata == {"from": "a test"}


def test_a_stream_has_growing_numbers_and_the_events_that_openai_documents(
    client: OpenAI,
) -> None:
    events = list(ask(client, THOUGHT, stream=True))
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"]
    assert kinds[-1] == "completed"
    assert [kind for kind in kinds if not kind.endswith("delta")] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert set(texts(events).values()) == {"one two thrée four"}
    assert events[-1].response.output_text == "one two thrée four"


async def think_and_call(request: LlmRequest) -> AsyncIterator[Piece]:
    yield ReasoningPiece(text="thrée ")
    yield ReasoningPiece(text="😀")
    yield TextPiece(text="I “look” and ")
    yield TextPiece(text="listen")
    yield ToolCallPiece(index=0, tool_name="look", arguments='{"at": "é"}')
    yield ToolCallPiece(index=1, tool_name="listen", arguments="{}")
    yield Stopped(reason="tool_calls")


def test_a_stream_is_resumed_at_every_offset_of_reasoning_text_and_two_calls(
    start_server: Start,
) -> None:
    """Also at numbers that no event had: the events need not be cut where they were."""
    function = "tests.gateway.test_responses:think_and_call"
    provider = {"id": "thinking", "type": "python", "function": function, "models": ["model"]}
    server = start_server(providers=[provider])
    tools: Any = [{"type": "function", "name": name, "parameters": {}} for name in TOOLS]
    with OpenAI(base_url=f"{server.http_url}v1", api_key="any", max_retries=0) as client:
        made: Any = client.responses
        events: list[Any] = list(
            made.create(model="thinking/model", input="x", stream=True, tools=tools)
        )
        whole = parts_of(events)
        assert [*whole.values()] == ["thrée 😀", "I “look” and listen", '{"at": "é"}', "{}"]
        server.restart()
    numbers = {event.sequence_number for event in events}
    inside = {
        event.sequence_number - back
        for event in events
        if event.type.endswith(".delta")
        for back in range(len(event.delta) + 1)
    }
    with OpenAI(base_url=f"{server.http_url}v1", api_key="any", max_retries=0) as client:
        for number in sorted(inside | numbers | {0}):
            rest = resumed(client, events[0].response.id, starting_after=number)
            assert all(event.sequence_number > number for event in rest)
            before = [event for event in events if event.sequence_number <= number]
            for place, text in whole.items():
                assert text.endswith(parts_of(rest).get(place, ""))
            if number in numbers:
                both = [*before, *rest]
                assert parts_of(both) == whole
                assert kinds_of(both) == kinds_of(events)


def parts_of(events: list[Any]) -> dict[str, str]:
    """The deltas of each item, joined."""
    joined: dict[str, str] = {}
    for event in events:
        if event.type.endswith(".delta"):
            place = f"{event.output_index} {event.type}"
            joined[place] = joined.get(place, "") + event.delta
    return joined


def kinds_of(events: list[Any]) -> list[str]:
    return [event.type for event in events if not event.type.endswith(".delta")]


def test_a_lost_stream_is_resumed_while_its_turn_runs(client: OpenAI) -> None:
    stream = ask(client, "!slow 2 a b c d e f g h", stream=True)
    first = []
    for event in stream:
        first.append(event)
        if event.type == "response.output_text.delta":
            break
    stream.close()
    rest = resumed(client, first[0].response.id, starting_after=first[-1].sequence_number)
    assert texts([*first, *rest])["response.output_text.delta"] == "a b c d e f g h"
    assert rest[-1].type == "response.completed"


def test_a_stream_is_resumed_after_the_server_was_killed(start_server: Start) -> None:
    server = start_server()
    with OpenAI(base_url=f"{server.http_url}v1", api_key="any", max_retries=0) as client:
        stream = ask(client, "!slow 60 a b c d e f g h", stream=True)
        first = []
        for event in stream:
            first.append(event)
            if event.type == "response.output_text.delta":
                break
        server.kill()
    server.start()
    with OpenAI(base_url=f"{server.http_url}v1", api_key="any", max_retries=0) as client:
        rest = resumed(client, first[0].response.id, starting_after=first[-1].sequence_number)
        shown = texts([*first, *rest])["response.output_text.delta"]
        assert "a b c d e f g h".startswith(shown.strip())
        assert rest[-1].type == "response.incomplete"
        assert rest[-1].response.status == "incomplete"
        assert rest[-1].response.output_text == shown
        assert client.responses.retrieve(first[0].response.id).status == "incomplete"


def test_the_previous_response_continues_its_conversation_or_forks_it(client: OpenAI) -> None:
    one = ask(client, "one")
    two = ask(client, "two", previous_response_id=one.id)
    assert two.conversation.id == one.conversation.id
    other = ask(client, "other two", previous_response_id=one.id)
    assert other.conversation.id != one.conversation.id
    assert other.previous_response_id == one.id


def test_other_results_for_the_same_calls_go_to_a_fork(client: OpenAI) -> None:
    tool: Any = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    asked = ask(client, "!tool look {}", tools=tool)

    def bring(result: str) -> Any:
        given = {"call_id": asked.output[0].call_id, "output": result}
        items = [{"type": "function_call_output", **given}]
        return ask(client, items, previous_response_id=asked.id, tools=tool)

    one, two = bring("a tree"), bring("a bush")
    assert (one.output_text, two.output_text) == ("a tree", "a bush")
    assert one.conversation == asked.conversation != two.conversation


def test_requests_that_follow_one_response_at_once_stay_apart(client: OpenAI) -> None:
    """Finding the last turn and appending to it are one step."""
    first = ask(client, "first")
    with ThreadPoolExecutor(8) as threads:
        made = [
            *threads.map(
                lambda number: ask(client, f"{number}", previous_response_id=first.id), range(8)
            )
        ]
    assert len({each.conversation.id for each in made}) == 8
    assert sum(each.conversation == first.conversation for each in made) == 1


def test_a_conversation_is_named_by_its_id(client: OpenAI) -> None:
    one = ask(client, "one")
    assert ask(client, "two", conversation=one.conversation.id).conversation == one.conversation


@pytest.mark.parametrize(
    "fields",
    [
        {"conversation": "conv_00000000000000000000000000000000"},
        {"conversation": "my notes"},
        {"previous_response_id": "resp_nothing"},
        {"previous_response_id": f"resp_1_{'0' * 32}_{'0' * 32}"},
    ],
)
def test_unknown_ids_are_not_found(client: OpenAI, fields: dict[str, str]) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        ask(client, "x", **fields)
    assert missing.value.param in fields


def test_a_conversation_and_a_previous_response_are_refused_together(client: OpenAI) -> None:
    one = ask(client, "one")
    with pytest.raises(openai.BadRequestError):
        ask(client, "x", conversation=one.conversation.id, previous_response_id=one.id)


def test_a_background_response_returns_at_once_and_can_be_cancelled(client: OpenAI) -> None:
    made = ask(client, "!slow 3600 never", background=True)
    assert made.status in ("queued", "in_progress")
    assert client.responses.retrieve(made.id).status == "in_progress"
    assert client.responses.cancel(made.id).status == "cancelled"
    assert client.responses.retrieve(made.id).status == "cancelled"


def test_a_deleted_response_is_gone_for_good(
    client: OpenAI, shared_server: ServerProcess, connect: Connect
) -> None:
    made = ask(client, "a secret of 4711")
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        resumed(client, made.id)
    terminal = connect(shared_server)
    terminal.hello()
    session_id = made.conversation.id.removeprefix("conv_")
    page = terminal.request(HISTORY_REQUEST, {"session_id": session_id, "view": "entries"})
    assert "4711" not in json.dumps(page.json)


def test_the_input_of_a_response_is_listed(client: OpenAI) -> None:
    made = ask(client, [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}])
    (item,) = client.responses.input_items.list(made.id)
    assert item.model_dump()["content"][0]["text"] == "hello"


def test_a_response_that_is_not_stored_can_not_be_read_again(client: OpenAI) -> None:
    raw = client.responses.with_raw_response.create(model=ECHO, input="hello", store=False)
    assert raw.headers["x-nplt-recorded"] == "false"
    made = raw.parse()
    assert (made.output_text, made.conversation) == ("hello", None)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


async def seal_thoughts(request: LlmRequest) -> AsyncIterator[Piece]:
    """Answers a result with what it was sent of its own reasoning."""
    outputs = [each for each in request.context if isinstance(each, ModelOutputMessage)]
    if outputs:
        (output,) = outputs
        shown = [output.reasoning, [part.kind for part in output.parts], output.parts[1].data]
        yield TextPiece(text=json.dumps([*shown, output.invocation == request.invocation]))
        yield Stopped(reason="end")
        return
    yield ReasoningPiece(text="well")
    yield OpaquePiece(data={"seal": "s"})
    yield TextPiece(text="I look.")
    yield ToolCallPiece(index=0, tool_name="look", arguments="{}")
    yield Stopped(reason="tool_calls")


def test_sealed_reasoning_goes_back_with_a_history_that_the_client_keeps(
    start_server: Start,
) -> None:
    function = "tests.gateway.test_responses:seal_thoughts"
    provider = {"id": "sealing", "type": "python", "function": function, "models": ["model"]}
    server = start_server(providers=[provider])
    given: list[Any] = [{"role": "user", "content": "look"}]
    with OpenAI(base_url=f"{server.http_url}v1", api_key="any", max_retries=0) as client:
        asked: Any = {
            "model": "sealing/model",
            "store": False,
            "tools": [{"type": "function", "name": "look", "parameters": {}}],
            "include": ["reasoning.encrypted_content"],
        }
        made = client.responses.create(input=given, **asked)
        kinds = [item.type for item in made.output]
        assert kinds == ["reasoning", "message", "function_call", "reasoning"]
        given += [item.model_dump(exclude_none=True) for item in made.output]
        call: Any = made.output[2]
        given.append({"type": "function_call_output", "call_id": call.call_id, "output": "a cat"})
        seen = client.responses.create(input=given, **asked).output_text
        assert json.loads(seen) == [
            "well",
            ["reasoning", "opaque", "text", "call"],
            {"seal": "s"},
            True,
        ]
        del asked["include"]
        made = client.responses.create(input=given[:1], **asked)
        assert "encrypted_content" not in json.dumps(made.model_dump(exclude_none=True))


def test_an_unstored_call_of_a_tool_is_an_item(client: OpenAI) -> None:
    tool: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    given: list[Any] = [{"role": "user", "content": '!tool look {"at": "it"}'}]
    made = ask(client, given, tools=[tool], store=False)
    (call,) = made.output
    assert (call.type, call.name, json.loads(call.arguments)) == (
        "function_call",
        "look",
        {"at": "it"},
    )
    given += [
        call.model_dump(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "a tree"},
    ]
    assert ask(client, given, tools=[tool], store=False).output_text == "a tree"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"input": [{"type": "wizardry"}]}, "input.0.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ],
)
def test_a_field_that_can_not_be_obeyed_is_refused_by_its_name(
    client: OpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**{"model": ECHO, "input": "x", **fields})
    assert refused.value.param == param


def test_a_failed_response_has_its_error_and_is_stored(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError):
        ask(client, "!fail")
    events = list(ask(client, "!fail", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.message
    assert client.responses.retrieve(events[0].response.id).status == "failed"


def test_a_turn_of_a_terminal_is_a_response_too(
    client: OpenAI, shared_server: ServerProcess, connect: Connect
) -> None:
    terminal = connect(shared_server)
    session_id = terminal.hello()["session_id"]
    receipt = terminal.request(0x07, {"text": "typed"}).json
    terminal.event(TURN_FINISHED)
    made = client.responses.retrieve(f"resp_{receipt['seq']}_{receipt['turn_id']}_{session_id}")
    assert made.output_text == "typed"


def test_starting_after_must_be_a_number(client: OpenAI, shared_server: ServerProcess) -> None:
    made = ask(client, "x")
    url = f"{shared_server.http_url}v1/responses/{made.id}?stream=true&starting_after=x"
    answer = request(url)
    assert (answer.status, answer.error["param"]) == (400, "starting_after")


def test_a_reader_that_stops_reading_gets_the_rest_from_the_record(
    shared_server: ServerProcess,
) -> None:
    """More than the events that may wait for one client."""
    text = "word " * 200_000
    body = json.dumps({"model": ECHO, "input": text, "stream": True})
    head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with connect(shared_server.http_url) as sock:
        sock.sendall(f"POST /v1/responses HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            piece = sock.recv(65_536)
            assert piece
            received += piece
    joined = b"".join(_chunks(received.partition(b"\r\n\r\n")[2]))
    events = [json.loads(each.split(b"\ndata: ")[1]) for each in joined.strip().split(b"\n\n")]
    deltas = (each["delta"] for each in events if each["type"].endswith("text.delta"))
    assert "".join(deltas).split() == text.split()


def _chunks(body: bytes) -> Iterator[bytes]:
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        yield body[:length]
        body = body[length + 2 :]
