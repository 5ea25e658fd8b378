"""The emulators over a bare socket: what no well-behaved client would send, and a
process of their own."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.vendors import faults
from tests.vendors.answers import Answer, Call, say
from tests.vendors.emulator import Emulator, Limits, emulator
from tests.vendors.rejections import Rejection
from tests.vendors.sse import Wire
from tests.vendors.threads import emulator_in_thread

ROOT = Path(__file__).parents[2]
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "hello there"}]}
ASKED_GPT = {**ASKED, "model": "gpt-4.1"}
ASKED_CLAUDE = {**ASKED, "model": "claude-opus-4-5", "max_tokens": 9}
KEYS = {"authorization": "Bearer sk-emulated", "anthropic-version": "2023-06-01"}


async def post(
    vendors: Emulator, path: str, body: object, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Status and body; of a chunked one everything that came, sizes included."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {**(KEYS if headers is None else headers), "content-length": str(len(raw))}
    lines = [f"POST {path} HTTP/1.1", "connection: close"]
    lines += [f"{name}: {value}" for name, value in given.items()]
    reader, writer = await asyncio.open_connection("127.0.0.1", vendors.port)
    writer.write("\r\n".join([*lines, "", ""]).encode() + raw)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), rest


def dechunked(body: bytes) -> list[bytes]:
    chunks = []
    while body and not body.startswith(b"0\r\n"):
        size, _, rest = body.partition(b"\r\n")
        chunks.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
    return chunks


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        (CHAT, b'{"model": ', "We could not parse the JSON body of your request."),
        (CHAT, b'{"model": "\xff"}', "We could not parse the JSON body of your request."),
        (CHAT, b'{"model": "\\ud83d"}', "what was sent was not valid JSON"),
        (MESSAGES, b'{"model": ', "The request body is not valid JSON: "),
        (
            MESSAGES,
            b'{"model": "\\ud83d"}',
            "The request body is not valid JSON: no low surrogate in string: line 1 column",
        ),
        (MESSAGES, b"[]", "Input should be a valid dictionary"),
        (CHAT, b"[]", "expected an object, but got an array of objects instead."),
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(path: str, body: bytes, says: str) -> None:
    async with emulator() as vendors:
        status, answer = await post(vendors, path, body)
        assert status == 400
        assert says in json.loads(answer)["error"]["message"]
        assert [each.path for each in vendors.received] == [path]
        assert len(vendors.rejections) == 1


async def test_a_body_may_have_so_many_bytes_and_no_more() -> None:
    body = json.dumps(ASKED_CLAUDE).encode()
    async with emulator(limits=Limits(body_bytes_max=len(body))) as vendors:
        assert (await post(vendors, MESSAGES, body))[0] == 200
        status, answer = await post(vendors, MESSAGES, body + b" ")
        assert status == 413
        assert json.loads(answer)["error"]["type"] == "request_too_large"
        assert (await post(vendors, CHAT, body + b" "))[0] == 413


@pytest.mark.parametrize(
    ("path", "headers", "status", "says"),
    [
        (CHAT, {}, 401, "You didn't provide an API key."),
        (CHAT, {"authorization": "Bearer sk-other"}, 401, "Incorrect API key provided: sk-***er."),
        (MESSAGES, {}, 401, "x-api-key header is required"),
        (MESSAGES, {"x-api-key": "sk-emulated"}, 400, "anthropic-version: header is required"),
        ("/v1/embeddings", KEYS, 404, "Invalid URL (POST /v1/embeddings)"),
    ],
)
async def test_headers_and_addresses_are_checked(
    path: str, headers: dict[str, str], status: int, says: str
) -> None:
    async with emulator() as vendors:
        answered, body = await post(vendors, path, ASKED, headers)
        assert answered == status
        assert says in json.loads(body)["error"]["message"]


async def test_a_stream_comes_in_single_bytes_with_the_line_ends_that_were_asked_for() -> None:
    async with emulator() as vendors:
        vendors.wire = Wire(line_end="\r\n", split_bytes=True, comments=True)
        _, body = await post(vendors, CHAT, {**ASKED_GPT, "stream": True})
        chunks = dechunked(body)
        assert {len(chunk) for chunk in chunks} == {1}
        text = b"".join(chunks).decode()
        assert text.endswith(": a comment\r\n\r\ndata: [DONE]\r\n\r\n")
        assert text.count("\n") == text.count("\r\n")


async def test_a_drip_changes_nothing_but_the_pace() -> None:
    async with emulator() as vendors:
        plain = await post(vendors, MESSAGES, {**ASKED_CLAUDE, "stream": True})
        vendors.wire = Wire(drip_seconds=1e-6)
        slow = await post(vendors, MESSAGES, {**ASKED_CLAUDE, "stream": True})
        assert len(dechunked(plain[1])) == len(dechunked(slow[1]))


@pytest.mark.parametrize("after", [0, 1, 4])
async def test_a_cut_comes_after_so_many_events(after: int) -> None:
    async with emulator() as vendors:
        vendors.fail_next(faults.Cut(after=after))
        _, body = await post(vendors, MESSAGES, {**ASKED_CLAUDE, "stream": True})
        assert len(dechunked(body)) == after
        assert not body.endswith(b"0\r\n\r\n")


async def test_a_fault_that_would_come_too_late_comes_before_the_last_event() -> None:
    async with emulator() as vendors:
        vendors.fail_next(faults.Cut(after=1000))
        _, body = await post(vendors, MESSAGES, {**ASKED_CLAUDE, "stream": True})
        assert dechunked(body)[-1].startswith(b"event: message_delta")


async def test_only_the_very_last_event_can_be_missing() -> None:
    async with emulator() as vendors:
        vendors.fail_next(faults.NoEnd(stop_sent=True), faults.NoEnd(stop_sent=True))
        _, chat = await post(vendors, CHAT, {**ASKED_GPT, "stream": True})
        _, messages = await post(vendors, MESSAGES, {**ASKED_CLAUDE, "stream": True})
        assert b'"finish_reason":"stop"' in dechunked(chat)[-1]
        assert dechunked(messages)[-1].startswith(b"event: message_delta\n")
        assert chat.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("fault", [faults.Cut(), faults.BrokenJson()])
async def test_an_answer_in_one_piece_can_be_broken_too(fault: faults.Fault) -> None:
    async with emulator() as vendors:
        vendors.fail_next(fault)
        status, body = await post(vendors, CHAT, ASKED_GPT)
        assert status == 200
        with pytest.raises(json.JSONDecodeError):
            json.loads(body)


async def test_a_script_can_fail_and_gets_the_number_of_its_call() -> None:
    def script(call: Call) -> Answer:
        first = call.number == 1
        return Answer(parts=say(call.api).parts, fault=faults.Status(status=529) if first else None)

    async with emulator(script) as vendors:
        assert (await post(vendors, MESSAGES, ASKED_CLAUDE))[0] == 529
        _, body = await post(vendors, CHAT, ASKED_GPT)
        assert json.loads(body)["choices"][0]["message"]["content"] == "chat"


async def test_a_script_may_refuse_for_a_reason_of_its_own() -> None:
    def script(call: Call) -> Answer:
        if "poison" in str(call.body):
            raise Rejection("messages.0.content.0: Could not process image")
        return say("fine")

    async with emulator(script) as vendors:
        poisoned = {**ASKED_CLAUDE, "messages": [{"role": "user", "content": "poison"}]}
        status, body = await post(vendors, MESSAGES, poisoned)
        assert status == 400
        assert json.loads(body)["error"]["message"].startswith("messages.0.content.0: ")
        assert (await post(vendors, MESSAGES, ASKED_CLAUDE))[0] == 200
        assert [each.rejection is None for each in vendors.received] == [False, True]


def test_it_serves_code_that_waits_from_a_thread_of_its_own() -> None:
    with emulator_in_thread() as vendors:
        vendors.fail_next(faults.Stall(after=1))
        waiting = HTTPConnection("127.0.0.1", vendors.port)
        waiting.request("POST", CHAT, json.dumps({**ASKED_GPT, "stream": True}), KEYS)
        answer = waiting.getresponse()
        assert b'"role":"assistant"' in answer.readline()
        vendors.release()
        assert answer.read().endswith(b"data: [DONE]\n\n")
        waiting.close()
        vendors.run(vendors.close())
        with pytest.raises(ConnectionRefusedError):
            waiting.connect()


async def test_rules_come_before_faults() -> None:
    async with emulator() as vendors:
        vendors.fail_next(faults.Status(status=500))
        assert (await post(vendors, CHAT, {**ASKED_GPT, "messages": []}))[0] == 400
        assert (await post(vendors, CHAT, ASKED_GPT))[0] == 500
        assert (await post(vendors, CHAT, ASKED_GPT))[0] == 200


async def test_a_script_that_crashes_is_reported() -> None:
    def script(call: Call) -> Answer:
        raise LookupError("nothing to say")

    vendors = Emulator(script)
    await vendors.open()
    with pytest.raises(IndexError):  # no answer at all
        await post(vendors, CHAT, ASKED_GPT)
    with pytest.raises(LookupError, match="nothing to say"):
        await vendors.close()


async def test_closing_sends_everybody_away_who_waits() -> None:
    async with emulator() as vendors:
        vendors.fail_next(faults.Stall(after=0))
        waiting = asyncio.ensure_future(post(vendors, CHAT, {**ASKED_GPT, "stream": True}))
        while not vendors.received:
            await asyncio.sleep(0)
    _, body = await waiting
    assert dechunked(body) == []


async def test_it_runs_in_a_process_of_its_own_and_prints_its_address() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.vendors"),
        *("--port", "0", "--key", "sk-emulated"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    elsewhere = Emulator()
    elsewhere.port = int(address.rpartition(":")[2])
    assert address == elsewhere.url
    assert (await post(elsewhere, CHAT, ASKED_GPT))[0] == 200
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
