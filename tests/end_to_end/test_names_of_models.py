"""A model named without its provider, and what a wrong name is answered with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.client.nplt_process import run_nplt
from tests.support.raw_client import (
    CHAT_TEXT,
    CLIENT_NOTE,
    MODEL_SWITCH,
    PROMPT,
    RawClient,
)
from tests.support.scripted_vendor import chat, vendor
from tests.support.server_process import run_nplt_server
from tests.support.server_thread import serving


def test_a_name_without_provider_is_the_one_model_of_that_name(tmp_path: Path) -> None:
    with vendor(chat("Hello")) as server:
        providers = [
            {"id": "offline", "type": "offline"},
            server.provider("zhipu", models=["glm-4-flash", "shared"]),
            server.provider("other", models=["shared", "zhipu/odd"]),
        ]
        settings = {"providers": providers, "roles": {"planner": "glm-4-flash"}}
        with serving(tmp_path / "data", settings) as port, RawClient(port) as client:
            address = f"nplt://127.0.0.1:{port}"
            client.hello()
            switched = client.request(MODEL_SWITCH, {"model": "glm-4-flash"}).json
            assert switched["model"] == "zhipu/glm-4-flash"
            assert switched["roles"] == {"planner": "zhipu/glm-4-flash"}
            receipt = client.request(PROMPT, {"text": "go", "model": "glm-4-flash"}).json
            assert receipt["model"] == "zhipu/glm-4-flash"

            refused = client.request(MODEL_SWITCH, {"model": "shared"}).json
            assert (refused["code"], refused["candidates"]) == (
                "ambiguous",
                ["zhipu/shared", "other/shared"],
            )
            asked = run_nplt(
                "ask", "-m", "glm-4-flash", "--json", "go", home=tmp_path, server=address
            )
            assert json.loads(asked.stdout)["model"] == "zhipu/glm-4-flash"
        with serving(tmp_path / "data", settings) as port, RawClient(port) as plain:
            plain.greeting()
            # The original client of version 2 says so when it starts.
            plain.send(CLIENT_NOTE, 0, {"model": "glm-4-flash"})
            plain.send(CHAT_TEXT, 1, "/model")
            words = ""
            while "zhipu/glm-4-flash" not in words:
                words = plain.receive().text
            assert "The model is zhipu/glm-4-flash" in words


def test_a_wrong_name_is_compared_with_the_models_of_its_provider_only(tmp_path: Path) -> None:
    with vendor(chat("Hello")) as server:
        providers = [
            server.provider("a", models=["glm-4-flash"]),
            server.provider("b", models=["qwen", "llama3"]),
        ]
        with (
            serving(tmp_path / "data", {"providers": providers}) as port,
            RawClient(port) as client,
        ):
            client.hello()
            refused = client.request(MODEL_SWITCH, {"model": "b/glm-4-flash"}).json
    assert "b/qwen, b/llama3" in refused["message"]
    assert refused["candidates"] == ["b/qwen", "b/llama3"]


def test_the_list_of_models_has_nothing_that_can_not_be_called(tmp_path: Path) -> None:
    with vendor(chat("Hello")) as server:
        # The server lists "m"; of the first provider only "own" may be called.
        closed, opened = server.provider("closed", models=["own"]), server.provider("opened")
        opened["base_url"] = opened["base_url"].replace("127.0.0.1", "localhost")
        opened["models"] = []
        with (
            serving(tmp_path / "data", {"providers": [closed, opened]}) as port,
            RawClient(port) as client,
        ):
            client.hello()
            while True:
                listed = client.request(MODEL_SWITCH, {"listed": True}).json
                if not any(told.get("asking") for told in listed["listed"].values()):
                    break
            names = [
                f"{provider}/{name}"
                for provider, told in listed["listed"].items()
                for name in told.get("models", ())
            ]
            assert names == ["opened/m"]
            for name in (*names, *listed["models"]):
                assert client.request(MODEL_SWITCH, {"model": name}).json["model"] == name


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("providers: [{id: off, type: offline}]", "YAML reads off, no and false as false"),
        ("providers: [{id: x, type: bedrock}]", "AWS_BEARER_TOKEN_BEDROCK"),
        ("providers: [{id: x, type: cohere}]", "https://api.cohere.ai/compatibility/v1"),
        ("providers: [{id: x, type: vertex_ai}]", "type gemini"),
        ("providers: [{id: x, type: vertex}]", "LiteLLM"),
        (
            "providers: [{type: openai, base_url: 'http://h/v1/chat/completions', models: [m]}]",
            "providers.0.base_url: expected an address without chat/completions",
        ),
        ("fallback_on: [wrong_key]", "'unavailable', 'overloaded'"),
    ],
)
def test_a_mistake_in_the_settings_says_what_to_write_instead(
    tmp_path: Path, settings: str, words: str
) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(settings)
    checked = run_nplt_server("--config", config, "--check")
    assert (checked.returncode, words in checked.stderr) == (78, True), checked.stderr
