"""Claude over HTTP: what the official SDK would have read, and every way it can fail."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import anyio
import pytest
from tests.server.providers.anthropic_stage import (
    ADAPTIVE,
    BUDGETED,
    Json,
    accumulated,
    anthropic_provider,
    body_of,
    deltas_of,
    request,
)
from tests.vendors import faults
from tests.vendors.answers import (
    Answer,
    Call,
    Refusal,
    Text,
    Thinking,
    ToolCall,
    UnknownItem,
)
from tests.vendors.emulator import Emulator, emulator
from tests.vendors.rejections import Rejection
from tests.vendors.sse import Wire

from nplt_server.context.messages import ModelInputMessage, ModelOutputMessage
from nplt_server.errors import ConfigurationError, ProviderRefused, RequestTooLarge
from nplt_server.providers import ModelOutputDelta, Stopped, TextPiece
from nplt_server.providers.client import VendorProvider

KEY = "sk-canary-0123456789"
RICH = Answer(
    parts=(
        Thinking("let me see"),
        Thinking("not for you", redacted=True),
        Text("I'll look, 你好 👋."),
        ToolCall("look", '{"at": "the \\"sky\\""}'),
        ToolCall("look", "{}"),
    )
)


@pytest.fixture
async def vendors() -> AsyncIterator[Emulator]:
    async with emulator(lambda call: RICH, key=KEY) as opened:
        yield opened


@pytest.fixture
async def claude(vendors: Emulator) -> AsyncIterator[VendorProvider]:
    provider = anthropic_provider(
        models=(BUDGETED, ADAPTIVE), key=KEY, base_url=vendors.anthropic_url
    )
    yield provider
    await provider.aclose()


async def as_the_sdk_reads_it(vendors: Emulator, body: Json) -> Json:
    import anthropic
    import httpx2

    async with (
        httpx2.AsyncClient(verify=False) as http,
        anthropic.AsyncAnthropic(
            base_url=vendors.anthropic_url, api_key=KEY, max_retries=0, http_client=http
        ) as sdk,
        sdk.messages.stream(
            model=body["model"], max_tokens=9, messages=[], extra_body=body
        ) as stream,
    ):
        return (await stream.get_final_message()).to_dict()


def as_we_read_it(deltas: Sequence[ModelOutputDelta], message: Json) -> None:
    """Both tell the same."""
    output = accumulated(deltas)
    blocks = message["content"]

    def of(kind: str) -> list[Json]:
        return [block for block in blocks if block["type"] == kind]

    entry = output.entry(
        turn_id="t", call=1, invocation=request().invocation, new_call_id=lambda: "c"
    )
    assert entry.content == "".join(block["text"] for block in of("text"))
    assert entry.reasoning == "".join(block["thinking"] for block in of("thinking"))
    assert [(call.tool_name, call.arguments) for call in entry.tool_calls] == [
        (block["name"], block["input"]) for block in of("tool_use")
    ]
    opaque = [part.data for part in entry.parts if part.kind == "opaque"]
    assert opaque == [
        *({"signature": block["signature"]} for block in of("thinking")),
        *({"redacted_thinking": block["data"]} for block in of("redacted_thinking")),
    ]
    counts = message["usage"]
    assert output.usage is not None
    assert output.usage.cached_tokens == counts["cache_read_input_tokens"]
    assert output.usage.output_tokens == counts["output_tokens"]
    assert output.usage.input_tokens == sum(
        counts[name]
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    assert (output.stop_reason, message["stop_reason"]) == ("tool_calls", "tool_use")


WIRES = {
    "plain": Wire(),
    "split at every byte": Wire(split_bytes=True),
    "crlf, comments, pings": Wire(line_end="\r\n", comments=True, pings=True),
    "strange": Wire(line_end="\r", unknown_events=True, extra_fields=True, late_usage=True),
}


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
async def test_what_we_read_is_what_the_sdk_reads(
    vendors: Emulator, claude: VendorProvider, wire: Wire
) -> None:
    asked = request(options={"effort": "high"})
    vendors.wire = wire
    deltas = await deltas_of(claude, asked)
    vendors.wire = replace(wire, late_usage=False, line_end="\n", unknown_events=False)
    message = await as_the_sdk_reads_it(vendors, body_of(asked))
    # Signatures and all: the emulator seals the same prefix the same way.
    as_we_read_it(deltas, message)


async def test_the_request_arrives_as_it_was_rendered(
    vendors: Emulator, claude: VendorProvider
) -> None:
    plain = request(options={"temperature": 0.5})  # is refused by this version, so left out
    await deltas_of(claude, plain)
    await deltas_of(claude, request(options={"effort": "low"}))
    first, second = vendors.received
    assert first.body == {**body_of(plain), "stream": True}
    assert first.headers["anthropic-version"] == "2026-10-21"
    assert "anthropic-beta" not in first.headers
    assert second.headers["anthropic-beta"].startswith("interleaved-thinking")


@pytest.mark.parametrize(
    ("named", "seqs"),
    [
        ("messages.2", (13, 14)),
        ("messages.2.content.1.text", (14,)),
        ("messages.2.content.7", (13, 14)),
        ("messages.1.content.0", (12,)),
    ],
)
async def test_a_refusal_that_names_a_message_names_its_entries(
    vendors: Emulator, claude: VendorProvider, named: str, seqs: tuple[int, ...]
) -> None:
    def refuse(call: Call) -> Answer:
        raise Rejection(f"{named}: 'poison' can't be taken")

    vendors.script = refuse
    asked = request(
        ModelInputMessage(content="a", seq=11),
        ModelOutputMessage(content="b", seq=12),
        ModelInputMessage(content="poison", seq=13),
        ModelInputMessage(content="d", seq=14),
    )
    with pytest.raises(ProviderRefused) as caught:
        await deltas_of(claude, asked)
    assert caught.value.entry_seqs == seqs
    assert f"the provider says: {named}: '…' can't be taken" in str(caught.value)


async def test_a_context_overflow_has_its_own_error(claude: VendorProvider) -> None:
    with pytest.raises(RequestTooLarge):
        await deltas_of(claude, request(ModelInputMessage(content="x" * 900_000, seq=1)))


async def test_leaving_in_the_middle_closes_the_stream_and_the_next_call_is_fine(
    vendors: Emulator, claude: VendorProvider
) -> None:
    vendors.fail_next(faults.Stall(after=4))
    async with claude.call_model(request()) as deltas:
        async for _ in deltas:
            break
    vendors.release()
    assert isinstance((await deltas_of(claude, request()))[-1], Stopped)


async def test_cancelled_in_the_middle_the_next_call_is_fine(
    vendors: Emulator, claude: VendorProvider
) -> None:
    vendors.fail_next(faults.Stall(after=4))
    has_begun = anyio.Event()

    async def listen() -> None:
        async with claude.call_model(request()) as deltas:
            async for _ in deltas:
                has_begun.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await has_begun.wait()
        tasks.cancel_scope.cancel()
    vendors.release()
    assert isinstance((await deltas_of(claude, request()))[-1], Stopped)


async def test_unknown_blocks_are_passed_over(vendors: Emulator, claude: VendorProvider) -> None:
    vendors.script = lambda call: Answer(
        parts=(UnknownItem({"type": "hologram", "data": [1]}), Text("hi"))
    )
    deltas = await deltas_of(claude, request())
    assert accumulated(deltas).text == "hi"
    assert deltas[-1] == Stopped(reason="end")


async def test_a_model_that_declines_says_why_or_is_an_error(
    vendors: Emulator, claude: VendorProvider
) -> None:
    vendors.script = lambda call: Answer(parts=(Refusal("not that"),))
    deltas = await deltas_of(claude, request())
    assert TextPiece(text="not that") in deltas
    assert deltas[-1] == Stopped(reason="refusal")
    vendors.script = lambda call: Answer(parts=(), stop="refusal")
    with pytest.raises(ProviderRefused, match="declined"):
        await deltas_of(claude, request())


@pytest.mark.parametrize("key", ["sk-é", "sk-1\n", "sk 1"])
def test_a_key_no_header_can_hold_is_refused_before_anyone_could_quote_it(key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        anthropic_provider(models=(BUDGETED,), key=key)
    assert key not in str(caught.value)


async def test_without_the_sdk_the_provider_says_so(
    claude: VendorProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(ProviderRefused, match="not installed"):
        await deltas_of(claude, request())
