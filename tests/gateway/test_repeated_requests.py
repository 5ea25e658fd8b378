"""Requests that are sent again run once, if it is certain that they are the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.conftest import Connect
from tests.gateway.http_client import ECHO, begin_and_leave, complete, request
from tests.support.raw_client import HISTORY_REQUEST, PROMPT, TURN_FINISHED
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
AGAIN = {"x-stainless-retry-count": "1"}


def test_a_request_repeated_with_its_idempotency_key_runs_once(
    url: str, contents: Callable[[str], list[str]]
) -> None:
    key = {"idempotency-key": "order 1"}
    one = complete(f"{url}c/retried/", "only once", key)
    two = complete(f"{url}c/retried/", "only once", key)
    assert one.json["id"] == two.json["id"]
    assert one.json["choices"] == two.json["choices"]
    assert contents(one.headers["x-nplt-conversation"]) == ["only once", "only once"]
    other = complete(f"{url}c/retried/", "something else", key)
    assert (other.status, other.error["code"]) == (409, "conflict")
    # Equal bodies alone never join.
    complete(f"{url}c/retried/", "only once")
    assert len(contents(one.headers["x-nplt-conversation"])) == 4


def test_a_retry_joins_the_turn_that_still_runs(url: str) -> None:
    key = {"idempotency-key": "order 2"}
    body = {"stream": True, "messages": [{"role": "user", "content": "!slow 1 a b c"}]}
    begin_and_leave(url, "joined", "!slow 1 a b c", key)
    answer = request(f"{url}c/joined/v1/chat/completions", "POST", body=body, headers=key)
    events = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: {")]
    deltas = (json.loads(event)["choices"][0]["delta"] for event in events)
    assert "".join(delta.get("content", "") for delta in deltas) == "a b c"


def test_a_request_that_the_library_repeats_joins_its_turn(
    url: str, shared_server: ServerProcess, contents: Callable[[str], list[str]]
) -> None:
    place = f"{url}c/repeated/v1/chat/completions"
    body = {"stream": True, "messages": [{"role": "user", "content": "!slow 1 a b c"}]}
    begin_and_leave(url, "repeated", "!slow 1 a b c", {})
    answer = request(place, "POST", body=body, headers=AGAIN)
    assert answer.body.count(b'"content":"') > 1
    assert answer.body.strip().endswith(b"[DONE]")
    assert contents("repeated") == ["!slow 1 a b c", "a b c"]
    # Its client has the final event now: what comes again is another request.
    request(place, "POST", body=body, headers=AGAIN)
    assert len(contents("repeated")) == 4


def test_a_response_repeated_with_its_key_is_the_same_response(url: str) -> None:
    key, body = {"idempotency-key": "order 3"}, {"model": ECHO, "input": "once"}
    ids = {
        request(f"{url}v1/responses", "POST", body=body, headers=key).json["id"] for _ in range(2)
    }
    assert len(ids) == 1


def respond(url: str, text: str, headers: dict[str, str], **fields: Any) -> Any:
    body = {"model": ECHO, "input": text, **fields}
    return request(f"{url}v1/responses", "POST", body=body, headers=headers).json


def test_a_response_that_follows_another_runs_once_with_its_key(
    url: str, contents: Callable[[str], list[str]]
) -> None:
    first = respond(url, "one", {})
    made = [
        respond(url, "two", {"idempotency-key": "k1"}, previous_response_id=first["id"])
        for _ in range(2)
    ]
    assert made[0]["id"] == made[1]["id"]
    assert made[0]["conversation"] == first["conversation"]
    assert contents(first["conversation"]["id"]) == ["one", "one", "two", "two"]


def test_a_fork_is_made_once_for_a_key(url: str) -> None:
    first = respond(url, "one", {})
    respond(url, "two", {}, previous_response_id=first["id"])
    made = [
        respond(url, "other two", {"idempotency-key": "k2"}, previous_response_id=first["id"])
        for _ in range(2)
    ]
    assert made[0]["id"] == made[1]["id"]
    assert made[0]["conversation"] != first["conversation"]


def test_requests_with_one_key_that_fork_at_once_run_once(url: str) -> None:
    first = respond(url, "one", {})
    respond(url, "two", {}, previous_response_id=first["id"])
    key = {"idempotency-key": "k4"}
    with ThreadPoolExecutor(8) as threads:
        sent = [
            threads.submit(respond, url, "other", key, previous_response_id=first["id"])
            for _ in range(8)
        ]
        assert len({each.result()["id"] for each in sent}) == 1


def test_a_fork_of_a_list_that_differs_is_made_once_for_a_key(
    url: str, shared_server: ServerProcess, connect: Connect
) -> None:
    place = f"{url}c/forked%20once/v1/chat/completions"
    terminal = connect(shared_server)
    complete(f"{url}c/forked%20once/", "one")
    terminal.hello({"session_id": "forked once"})
    terminal.ask("typed")
    changed = [("user", "changed"), ("assistant", "one"), ("user", "more")]
    body = {"messages": [{"role": role, "content": text} for role, text in changed]}
    made = [request(place, "POST", body=body, headers={"idempotency-key": "k3"}) for _ in range(2)]
    assert made[0].json["id"] == made[1].json["id"]
    assert len({each.headers["x-nplt-conversation"] for each in made}) == 1


def test_a_prompt_is_found_by_an_earlier_id(shared_server: ServerProcess, connect: Connect) -> None:
    client = connect(shared_server)
    client.hello()
    first = client.request(PROMPT, {"text": "hi", "message_id": "today"}).json
    client.event(TURN_FINISHED)
    again = {"text": "hi", "message_id": "tomorrow", "earlier_ids": ["today"]}
    receipt = client.request(PROMPT, again).json
    assert (receipt["duplicate"], receipt["turn_id"]) == (True, first["turn_id"])
    receipt = client.request(PROMPT, {**again, "earlier_ids": ["tomorrow"]}).json
    assert "duplicate" not in receipt


def test_a_key_is_good_after_a_restart(start_server: Start) -> None:
    server = start_server()
    key = {"idempotency-key": "order 4"}
    first = complete(f"{server.http_url}c/kept/", "once", key).json
    server.kill()
    server.start()
    assert complete(f"{server.http_url}c/kept/", "once", key).json["id"] == first["id"]
    assert complete(f"{server.http_url}c/kept/", "twice", key).status == 409


def test_a_request_repeated_after_a_crash_joins_the_turn_that_the_crash_ended(
    start_server: Start, connect: Connect
) -> None:
    server = start_server()
    begin_and_leave(server.http_url, "crashed", "!slow 60 a b c", {})
    server.kill()
    server.start()
    body = {"stream": True, "messages": [{"role": "user", "content": "!slow 60 a b c"}]}
    place = f"{server.http_url}c/crashed/v1/chat/completions"
    assert request(place, "POST", body=body, headers=AGAIN).status == 503
    client = connect(server)
    client.hello()
    page = client.request(HISTORY_REQUEST, {"session_id": "crashed"}).json
    assert [each["role"] for each in page["messages"]].count("user") == 1


def test_a_request_repeated_after_a_restart_is_new_if_its_turn_was_complete(
    start_server: Start, connect: Connect
) -> None:
    """Its client may have had the answer, and may say the same again."""
    server = start_server()
    complete(f"{server.http_url}c/complete/", "yes")
    server.restart()
    assert complete(f"{server.http_url}c/complete/", "yes", AGAIN).status == 200
    client = connect(server)
    client.hello()
    page = client.request(HISTORY_REQUEST, {"session_id": "complete"}).json
    assert [each["content"] for each in page["messages"]] == ["yes"] * 4
