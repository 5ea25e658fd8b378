"""What servers say of their models: windows, prices, tools, pictures, and where each is from."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.test_model_lists import OFFLINE, lists, talking
from tests.support.llama.server import MODEL, WINDOW_TOKENS, llama_server
from tests.support.model_servers import (
    LITELLM,
    LM_STUDIO,
    OPENROUTER,
    VLLM,
    Body,
    Route,
    listed,
    model_server,
    ollama,
)

from nplt_client.sync import Client


def settings_at(url: str, models: Mapping[str, Any] | None = None) -> dict[str, Any]:
    box = {"id": "box", "type": "openai", "base_url": url, "api": "chat"}
    return {"providers": [OFFLINE, box], "models": models or {}}


def facts_of(client: Client, model: str) -> dict[str, Any]:
    lists(client)
    facts: Any = client.models(listed=True).facts
    found: dict[str, Any] = facts[model]
    return found


@pytest.mark.parametrize(
    ("routes", "model", "expected"),
    [
        (VLLM, "qwen", {"context_tokens": 8_192, "source": "the provider's list"}),
        (
            OPENROUTER,
            "maker/talker",
            {
                "context_tokens": 64_000,
                "tools": False,
                "images": True,
                "price_in": 1.25,
                "price_out": 10.0,
                "source": "the provider's list",
            },
        ),
        (
            OPENROUTER,
            "openrouter/auto",
            {"context_tokens": 2_000_000, "tools": True, "images": False, "price_in": None},
        ),
        (
            LITELLM,
            "mine",
            {
                "context_tokens": 100_000,
                "tools": True,
                "images": True,
                "price_in": 0.15,
                "price_out": 0.6,
                "source": "LiteLLM's /model/info",
            },
        ),
        (LITELLM, "unknown", {"context_tokens": 128_000, "price_in": None, "source": None}),
        (
            LM_STUDIO,
            "qwen/q",
            {
                "context_tokens": 12_000,
                "ceiling_tokens": 131_072,
                "images": True,
                "source": "LM Studio's /api/v0/models",
            },
        ),
        (
            ollama(window=16_384, capabilities=("vision",)),
            "gemma3:4b",
            {
                "context_tokens": 4_096,
                "ceiling_tokens": 131_072,
                "tools": False,
                "images": True,
                "source": "Ollama's default; not loaded",
                "source of tools": "Ollama's /api/show",
            },
        ),
        (
            ollama(window=16_384, parameters="stop <end>\nnum_ctx    6000\n"),
            "gemma3:4b",
            {"context_tokens": 6_000, "source": "num_ctx in Ollama's /api/show"},
        ),
    ],
    ids=[
        *("vLLM", "OpenRouter", "OpenRouter, a router", "LiteLLM", "LiteLLM, unknown"),
        *("LM Studio", "Ollama", "Ollama, num_ctx"),
    ],
)
def test_server_tells_the_window_of_its_model_and_more(
    tmp_path: Path, routes: dict[str, Route], model: str, expected: dict[str, Any]
) -> None:
    with (
        model_server(routes) as server,
        talking(tmp_path / "data", settings_at(server.url)) as client,
    ):
        facts = facts_of(client, f"box/{model}")
    facts["source"] = facts["sources"].get("context_tokens")
    facts["source of tools"] = facts["sources"].get("tools")
    assert {name: facts.get(name) for name in expected} == expected


def test_llama_cpp_tells_the_window_of_a_slot(tmp_path: Path) -> None:
    url = f"{llama_server().url}/v1"
    with talking(tmp_path / "data", settings_at(url)) as client:
        facts = facts_of(client, f"box/{MODEL}")
    assert facts["context_tokens"] == WINDOW_TOKENS
    assert facts["sources"]["context_tokens"] == "llama.cpp's /props"
    assert facts["tools"]
    assert not facts["images"]


def test_settings_win_over_what_a_server_tells(tmp_path: Path) -> None:
    chosen = {"box/qwen": {"context_tokens": 5_000, "images": True}}
    with (
        model_server(VLLM) as server,
        talking(tmp_path / "data", settings_at(server.url, chosen)) as client,
    ):
        facts = facts_of(client, "box/qwen")
    assert facts["context_tokens"] == 5_000
    assert facts["images"] is True
    assert facts["sources"]["context_tokens"] == "models in the settings"


def test_ollama_loads_the_model_before_a_call_and_its_window_is_that_of_api_ps(
    tmp_path: Path,
) -> None:
    with (
        model_server(ollama(window=16_384)) as server,
        talking(tmp_path / "data", settings_at(server.url)) as client,
    ):
        assert client.ask_text("hello", model="box/gemma3:4b") == "ok"
        facts = facts_of(client, "box/gemma3:4b")
        paths = [path for path, _ in server.asked]
    assert facts["context_tokens"] == 16_384
    assert facts["sources"]["context_tokens"] == "Ollama's /api/ps"
    assert paths.index("/api/generate") < paths.index("/v1/chat/completions")


def test_ollamas_model_without_a_tag_is_its_latest(tmp_path: Path) -> None:
    routes = ollama(window=9_000)
    routes["/v1/models"] = listed({"id": "gemma3:latest", "owned_by": "library"})
    with (
        model_server(routes) as server,
        talking(tmp_path / "data", settings_at(server.url, {"box/gemma3": {}})) as client,
    ):
        assert client.ask_text("hello", model="box/gemma3") == "ok"
        facts = facts_of(client, "box/gemma3")
    assert facts["context_tokens"] == 9_000


def test_window_of_an_unknown_model_is_asked_for_before_its_first_call(tmp_path: Path) -> None:
    with (
        model_server(VLLM) as server,
        talking(tmp_path / "data", settings_at(server.url)) as client,
    ):
        assert client.ask_text("hello", model="box/qwen") == "ok"
        assert client.ask_text("again", model="box/qwen") == "ok"
    [first, _] = server.paths("/v1/chat/completions")
    assert [path for path, _ in server.asked].count("/v1/models") == 1
    assert first["max_completion_tokens"] < 8_192


def test_window_of_a_server_that_is_silent_delays_a_call_only_for_a_moment(tmp_path: Path) -> None:
    def stall(body: Body) -> Body:
        time.sleep(3)
        return listed()

    with (
        model_server({"/v1/models": stall}) as server,
        talking(tmp_path / "data", settings_at(server.url)) as client,
    ):
        assert client.ask_text("hello", model="box/qwen") == "ok"
        assert client.ask_text("again", model="box/qwen") == "ok"
    assert [path for path, _ in server.asked].count("/v1/models") == 1


class CountingServer:
    """Counts six tokens for each word, refuses more than its window, and says both."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.refused = 0

    def answer(self, body: Body) -> Body | tuple[int, Body]:
        words = sum(len(str(message["content"]).split()) for message in body["messages"])
        sent, most = words * 6, body.get("max_completion_tokens", 0)
        if sent + most > self.window:
            self.refused += 1
            said = (
                f"This model's maximum context length is {self.window} tokens. However, you "
                f"requested {sent + most} tokens ({sent} in the messages, {most} in the "
                "completion). Please reduce the length of the messages or completion."
            )
            return 400, {"error": {"message": said, "code": "context_length_exceeded"}}
        choice = {"index": 0, "message": {"content": "ok"}, "finish_reason": "stop"}
        return {"choices": [choice], "usage": {"prompt_tokens": sent, "completion_tokens": 1}}


def test_figures_of_a_refusal_correct_the_count_so_that_the_next_try_fits(tmp_path: Path) -> None:
    counting = CountingServer(window=9_000)
    routes: dict[str, Route] = {"/v1/chat/completions": counting.answer, "/v1/models": listed()}
    known = {"box/qwen": {"context_tokens": 9_000}}
    with (
        model_server(routes) as server,
        talking(tmp_path / "data", settings_at(server.url, known)) as client,
    ):
        assert client.ask_text("more " * 3_000, model="box/qwen") == "ok"
    assert counting.refused == 1, "our own estimate alone needs more tries"
