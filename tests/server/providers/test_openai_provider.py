"""The whole way to OpenAI and back, over HTTP: to the emulator, with the official SDK.

Whatever goes wrong on it is one error that says who acts next, and never an answer.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Literal

import httpx2
import pytest
from tests.server.providers.openai_stage import (
    CHAT,
    PLAIN,
    REASONER,
    RESPONSES,
    accumulated,
    asked_over_http,
    deltas_of,
    provider_of,
    request,
)
from tests.vendors import faults
from tests.vendors.answers import Answer, Call, say
from tests.vendors.emulator import Emulator, emulator
from tests.vendors.rejections import Rejection
from tests.vendors.sse import Wire

from nplt_server.context.messages import ModelInputMessage
from nplt_server.errors import (
    ConfigurationError,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    RequestTooLarge,
)
from nplt_server.providers import ModelOutputDelta, Patience, TextPiece
from nplt_server.providers.client import VendorProvider
from nplt_server.providers.openai import OpenAIClient
from nplt_server.providers.vendor_api import (
    RenderedRequest,
    RenderedStep,
    VendorApi,
    as_json,
    with_entries,
)

BOTH = pytest.mark.parametrize("vendor_api", [CHAT, RESPONSES], ids=["chat", "responses"])


@pytest.fixture
async def vendors() -> AsyncIterator[Emulator]:
    async with emulator() as opened:
        yield opened


async def test_an_answer_may_come_byte_by_byte(vendors: Emulator) -> None:
    vendors.wire = Wire(line_end="\r", split_bytes=True, unknown_events=True)
    vendors.script = lambda _: say("é👋")
    output = await asked_over_http(vendors, CHAT)
    assert (output.text, output.stop_reason) == ("é👋", "end")


# What goes wrong

TALKING: dict[str, faults.Fault] = {
    "cut": faults.Cut(after=6),
    "error event": faults.ErrorEvent(after=6),
    "failed": faults.ErrorEvent(after=6, failed=True),
    "broken json": faults.BrokenJson(after=6),
}
SILENT: dict[str, faults.Fault] = {
    "429": faults.Status(status=429, retry_after="7"),
    "500": faults.Status(status=500),
    "503": faults.Status(status=503),
    "529": faults.Status(status=529),
    "hang up": faults.HangUp(),
    "cut": faults.Cut(after=0),
    "error event": faults.ErrorEvent(after=0),
    "broken json": faults.BrokenJson(after=0),
}


@BOTH
async def test_a_fault_before_the_first_token_leaves_others_to_be_asked(
    vendors: Emulator, vendor_api: VendorApi
) -> None:
    for name, fault in SILENT.items():
        vendors.fail_next(fault)
        deltas: list[ModelOutputDelta] = []
        # Each on a new connection: on a kept one, to hang up is no failure.
        async with provider_of(vendors, vendor_api) as provider:
            with pytest.raises(ProviderUnavailable) as caught:
                await deltas_of(provider, request(vendor_api=vendor_api), deltas)
        failure = caught.value
        assert not deltas, name
        assert failure.before_first_token, name
        assert not failure.timed_out, name
        assert failure.retry_after == (7.0 if name == "429" else None), name


@BOTH
async def test_an_error_in_the_stream_raises_and_does_not_end_the_output(
    vendors: Emulator, vendor_api: VendorApi
) -> None:
    vendors.script = lambda _: say("an answer of several pieces")
    async with provider_of(vendors, vendor_api) as provider:
        for name, fault in TALKING.items():
            vendors.fail_next(fault)
            deltas: list[ModelOutputDelta] = []
            with pytest.raises(ProviderUnavailable) as caught:
                await deltas_of(provider, request(vendor_api=vendor_api), deltas)
            assert TextPiece(text="an ans") in deltas, name
            assert accumulated(deltas).stop_reason is None, name
            assert not caught.value.before_first_token, name


@BOTH
async def test_a_server_that_does_not_begin_is_not_waited_for(
    vendors: Emulator, vendor_api: VendorApi
) -> None:
    vendors.fail_next(faults.Stall(after=0))
    with pytest.raises(ProviderUnavailable) as caught:
        await asked_over_http(vendors, vendor_api, patience=Patience(first_token_seconds=0.05))
    assert (caught.value.timed_out, caught.value.before_first_token) == (True, True)
    vendors.release()


async def test_the_time_to_import_the_sdk_is_not_the_providers(
    vendors: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = OpenAIClient._open

    def slowly(client: OpenAIClient, http: httpx2.AsyncClient) -> object:
        time.sleep(3.0)
        return opened(client, http)

    monkeypatch.setattr(OpenAIClient, "_open", slowly)
    output = await asked_over_http(vendors, CHAT, patience=Patience(first_token_seconds=2.5))
    assert output.text == "hello"


@BOTH
async def test_a_server_that_falls_silent_is_not_waited_for(
    vendors: Emulator, vendor_api: VendorApi
) -> None:
    vendors.fail_next(faults.Stall(after=6))
    vendors.script = lambda _: say("an answer of several pieces")
    deltas: list[ModelOutputDelta] = []
    async with provider_of(vendors, vendor_api, patience=Patience(gap_seconds=0.3)) as provider:
        with pytest.raises(ProviderUnavailable) as caught:
            await deltas_of(provider, request(vendor_api=vendor_api), deltas)
    assert (caught.value.timed_out, caught.value.before_first_token) == (True, False)
    assert accumulated(deltas).stop_reason is None
    vendors.release()


@pytest.mark.parametrize(
    ("vendor_api", "fault"),
    [
        (CHAT, faults.NoEnd()),
        (CHAT, faults.NoEnd(stop_sent=True)),
        (RESPONSES, faults.NoEnd()),
    ],
    ids=["chat", "chat without [DONE]", "responses"],
)
async def test_an_answer_without_its_end_has_not_stopped(
    vendors: Emulator, vendor_api: VendorApi, fault: faults.Fault
) -> None:
    vendors.fail_next(fault)
    output = await asked_over_http(vendors, vendor_api)
    assert (output.text, output.stop_reason) == ("hello", None)


async def test_a_server_that_is_not_there_can_be_asked_later(vendors: Emulator) -> None:
    async with provider_of(vendors) as provider:
        await vendors.close()
        with pytest.raises(ProviderUnavailable, match="nothing listens at 127"):
            await deltas_of(provider, request(), [])
        await vendors.open()
        assert (await deltas_of(provider, request(), [])).text == "hello"


@BOTH
async def test_a_wrong_key_is_the_operators_and_appears_nowhere(
    vendors: Emulator, vendor_api: VendorApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = "sk-very-secret-key"
    with pytest.raises(ProviderUnauthorized) as caught:
        await asked_over_http(vendors, vendor_api, key=key)
    assert key not in caplog.text
    assert key not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def log_everything(caplog: pytest.LogCaptureFixture) -> None:
    """Others may have told the libraries below to be silent."""
    for logger in (None, "openai", "httpx2", "nplt_server.providers.http_client"):
        caplog.set_level(logging.DEBUG, logger=logger)


async def test_a_right_key_appears_in_no_log(
    vendors: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    log_everything(caplog)
    await asked_over_http(vendors, CHAT)
    assert "chat/completions" in caplog.text
    assert vendors.key not in caplog.text


@pytest.mark.parametrize("key", ["sk-one\nsk-two", "sk-é", "two words"])
def test_a_key_that_is_none_is_refused_without_a_word_of_it(key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        OpenAIClient(api_key=key)
    assert key not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/v1", "nowhere"])
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    provider = VendorProvider(
        "openai", OpenAIClient(api_key="k", base_url=url), apis=(CHAT,), models=()
    )
    with pytest.raises(ProviderRefused):
        await deltas_of(provider, request(), [])
    await provider.aclose()


async def test_a_model_that_is_not_there_is_a_refusal(vendors: Emulator) -> None:
    with pytest.raises(ProviderRefused, match="does not know this model"):
        await asked_over_http(vendors, CHAT, request(model="gpt-0"))


@BOTH
async def test_a_context_overflow_is_context_too_large(
    vendors: Emulator, vendor_api: VendorApi
) -> None:
    book = ModelInputMessage(content="word " * 200_000, seq=1)
    asked = request(book, vendor_api=vendor_api, model=PLAIN)
    with pytest.raises(RequestTooLarge):
        await asked_over_http(vendors, vendor_api, asked)


@pytest.mark.parametrize(
    ("vendor_api", "rejection"),
    [
        (CHAT, Rejection("No.", param="messages[0].content")),
        (CHAT, Rejection("Invalid 'messages.[0].content'")),
        (RESPONSES, Rejection("No.", param="input[0].content")),
    ],
    ids=["param", "words", "item"],
)
async def test_a_refusal_that_names_a_message_names_its_entry(
    vendors: Emulator, vendor_api: VendorApi, rejection: Rejection
) -> None:
    def refuse(_: Call) -> Answer:
        raise rejection

    vendors.script = refuse
    asked = request(ModelInputMessage(content="poison", seq=42), vendor_api=vendor_api)
    with pytest.raises(ProviderRefused) as caught:
        await asked_over_http(vendors, vendor_api, asked)
    assert caught.value.entry_seqs == (42,)


def sent_with(
    list_name: Literal["messages", "input"], messages: list[object], *seqs: tuple[int, ...]
) -> RenderedRequest:
    sent = tuple(map(as_json, messages))
    step = RenderedStep(messages=sent, seqs=seqs)
    return RenderedRequest(fields={}, list_name=list_name, messages=sent, steps=[step])


def refusal() -> ProviderRefused:
    return ProviderRefused("no", content_refused=True)


@pytest.mark.parametrize(
    "words", ["No tool output found for call call_own1.", "Item 'rs_12345' can't be verified."]
)
def test_a_refusal_that_names_an_id_names_its_entry(words: str) -> None:
    sent = sent_with("input", [{}, {"id": "rs_12345"}, {"call_id": "call_own1"}], (), (1,), (1,))
    chat = sent_with("messages", [{"tool_calls": [{"id": "call_own1"}]}], (1,))
    assert with_entries(refusal(), words, sent).entry_seqs == (1,)
    named = with_entries(refusal(), "call_own1", chat)
    assert (named.entry_seqs, named.message_index) == ((1,), 0)
    assert with_entries(refusal(), "Something else.", sent).message_index is None
    assert with_entries(ProviderRefused("no such model"), words, sent).message_index is None


@pytest.mark.parametrize("own_id", ["a", "1", "schema", "function", "call_1", "call_own"])
def test_no_entry_is_named_by_what_only_looks_like_its_id(own_id: str) -> None:
    sent = sent_with("messages", [{"tool_call_id": own_id}], (1,))
    words = "Invalid schema for function 'a1': array schema missing items (call_own17)."
    assert with_entries(refusal(), words, sent).entry_seqs == ()


async def test_a_connection_is_used_again(
    vendors: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    log_everything(caplog)
    async with provider_of(vendors) as provider:
        for _ in range(3):
            await deltas_of(provider, request(), [])
    assert caplog.text.count("connected to 127.0.0.1") == 1


async def test_leaving_in_the_middle_closes_the_stream_and_nothing_else(vendors: Emulator) -> None:
    vendors.fail_next(faults.Stall(after=3))
    async with provider_of(vendors) as provider:
        async with provider.call_model(request()) as stream:
            assert await anext(stream) == TextPiece(text="hello")
        assert (await deltas_of(provider, request(), [])).text == "hello"
    vendors.release()


async def test_bytes_without_a_token_do_not_put_the_first_one_off(vendors: Emulator) -> None:
    vendors.wire = Wire(comments=True, split_bytes=True, drip_seconds=0.02)
    with pytest.raises(ProviderUnavailable) as caught:
        await asked_over_http(vendors, CHAT, patience=Patience(first_token_seconds=0.1))
    assert caught.value.timed_out
    assert caught.value.before_first_token


async def test_organization_variables_of_the_environment_are_not_sent(
    vendors: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID"):
        monkeypatch.setenv(f"OPENAI_{name}", "of-another-account")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9")
    await asked_over_http(vendors, CHAT)
    assert "of-another-account" not in vendors.received[-1].headers.values()


async def test_a_server_that_asks_for_no_key_gets_an_answer_out_of_the_same_code() -> None:
    async with emulator(key="none") as vendors:
        output = await asked_over_http(vendors, CHAT, request(model=REASONER), key="")
    assert output.stop_reason == "end"


def test_the_sdk_is_not_imported_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = "nplt_server.providers.openai"
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    import_module(ours)
