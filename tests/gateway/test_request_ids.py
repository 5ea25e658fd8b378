"""The id of a request: in the response, in the log, and in the request to the provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
from tests.conftest import Connect
from tests.gateway.http_client import request
from tests.support.raw_client import PROMPT, TURN_FINISHED
from tests.support.redis_server import wait_until
from tests.support.server_process import ServerProcess
from tests.vendors import HostedEmulator, Status, emulator_in_thread

Start = Callable[..., ServerProcess]
CHAT = {"model": "ai/gpt-4.1", "messages": [{"role": "user", "content": "hello"}]}
RESPONSE = {"model": "ai/gpt-4.1", "input": "hello"}


@pytest.fixture
def vendor() -> Iterator[HostedEmulator]:
    with emulator_in_thread() as vendor:
        yield vendor


@pytest.fixture
def server(start_server: Start, vendor: HostedEmulator, tmp_path: Path) -> ServerProcess:
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text(vendor.key)
    openai = {"id": "ai", "type": "openai", "base_url": vendor.openai_url, "models": ["gpt-4.1"]}
    return start_server(providers=[{**openai, "api_key_file": str(key)}])


@pytest.mark.parametrize(("path", "body"), [("chat/completions", CHAT), ("responses", RESPONSE)])
def test_a_response_and_the_call_of_its_model_have_the_same_id(
    server: ServerProcess, vendor: HostedEmulator, path: str, body: dict[str, object]
) -> None:
    for stream, stored in product([True, False], repeat=2):
        whole = {**body, "stream": stream, "store": stored}
        answer = request(f"{server.http_url}v1/{path}", "POST", body=whole)
        assert answer.status == 200, answer.body
        sent = vendor.received[-1].headers["x-client-request-id"]
        assert answer.headers["x-request-id"] == sent
        assert len(sent) > 20


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("v1", "an answer of ai/gpt-4.1 without a conversation"),
        ("c/notes/v1", "a turn of ai/gpt-4.1"),
    ],
)
def test_the_log_names_the_request_that_failed(
    server: ServerProcess, vendor: HostedEmulator, path: str, what: str
) -> None:
    vendor.fail_next(Status(status=401))
    answer = request(f"{server.http_url}{path}/chat/completions", "POST", body=CHAT)
    assert answer.status >= 400
    request_id = answer.headers["x-request-id"]
    assert vendor.received[-1].headers["x-client-request-id"] == request_id

    line = f"{what} failed: {answer.error['code']} request={request_id}\n"
    wait_until(lambda: line in server.log, "the failure is logged")
    assert vendor.key not in server.log


def test_the_id_of_a_prompt_is_its_turn(
    server: ServerProcess, vendor: HostedEmulator, connect: Connect
) -> None:
    client = connect(server)
    client.hello()
    sent = []
    for text in ("one", "two"):
        turn_id = client.request(PROMPT, {"text": text}).json["turn_id"]
        client.event(TURN_FINISHED)
        sent.append((turn_id, vendor.received[-1].headers["x-client-request-id"]))
    assert sent[0][0] != sent[1][0]
    assert all(turn_id == header for turn_id, header in sent)


def test_every_response_has_an_id_of_its_own(server: ServerProcess) -> None:
    urls = (f"{server.http_url}{path}" for path in ("v1/models", "v1/models", "nothing"))
    ids = {request(url).headers["x-request-id"] for url in urls}
    assert len(ids) == 3
