"""`{type: local, path: FILE.gguf}`: a model of one's own, in a process that may die."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from tests.support.llama import speech
from tests.support.llama.server import llama_server
from tests.support.server_thread import serving

from nplt_client import LimitExceeded, ProviderFailed
from nplt_client.render.reports import models_text
from nplt_client.sync import Client, connect
from nplt_server.errors import ConfigurationError
from nplt_server.providers.gguf import facts_of
from nplt_server.settings_loader import load_settings

SENTENCE = speech.spoken(speech.SENTENCE)


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "My Model Q4.gguf"
    path.write_bytes(llama_server().model_file.read_bytes())
    return path


def settings_for(path: Path, **more: Any) -> dict[str, Any]:
    return {"providers": [{"type": "local", "path": str(path)}], **more}


def facts(client: Client, model: str) -> dict[str, Any]:
    found: Any = client.models(listed=True).facts
    return dict(found[model])


def test_gguf_file_answers_with_the_window_and_the_template_of_its_file(
    tmp_path: Path, model_file: Path
) -> None:
    with (
        serving(tmp_path / "data", settings_for(model_file)) as port,
        connect(f"nplt://127.0.0.1:{port}") as client,
    ):
        assert client.models().models == ("local/My-Model-Q4",)
        known = facts(client, "local/My-Model-Q4")
        assert known["context_tokens"] == 8_192
        assert known["tools"], "its template has a place for tools"
        assert known["sources"]["context_tokens"] == "its file"
        assert client.ask_text("hello") == SENTENCE


def test_window_of_a_gguf_file_can_be_set(tmp_path: Path, model_file: Path) -> None:
    settings = settings_for(model_file, models={"local/My-Model-Q4": {"context_tokens": 2_048}})
    with (
        serving(tmp_path / "data", settings) as port,
        connect(f"nplt://127.0.0.1:{port}") as client,
    ):
        known = facts(client, "local/My-Model-Q4")
    assert known["context_tokens"] == 2_048
    assert known["ceiling_tokens"] == 8_192


def test_a_window_smaller_than_the_gguf_files_is_shown_as_limited(
    tmp_path: Path,
) -> None:
    path = tmp_path / "big.gguf"
    path.write_bytes(header(string(b"x.context_length") + struct.pack("<II", 4, 131_072)))
    with (
        serving(tmp_path / "data", settings_for(path)) as port,
        connect(f"nplt://127.0.0.1:{port}") as client,
    ):
        choice = client.models(listed=True)
        with pytest.raises(LimitExceeded, match="limited to save memory; context_tokens"):
            client.ask_text("word " * 20_000)
    assert choice.facts is not None
    known: Any = choice.facts["local/big"]
    assert (known["context_tokens"], known["ceiling_tokens"]) == (8_192, 131_072)
    assert "context_tokens sets another" in known["sources"]["context_tokens"]
    shown = models_text(choice)
    assert "8,192 of 131,072" in shown
    assert "window: limited to save memory; context_tokens sets another" in shown


def test_broken_gguf_file_fails_the_turn_and_not_the_server(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\xff" * 64)
    with (
        serving(tmp_path / "data", settings_for(path)) as port,
        connect(f"nplt://127.0.0.1:{port}") as client,
    ):
        with pytest.raises(ProviderFailed, match="broken can't be loaded"):
            client.ask_text("hello")
        assert client.status().server.startswith("nplt/")


def test_missing_gguf_file_is_a_mistake_in_the_settings(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("providers: [{type: local, path: /nowhere/model.gguf}]")
    with pytest.raises(ConfigurationError, match=r"there is no file /nowhere/model\.gguf"):
        load_settings({}, config_file=config, environ={})


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def header(*pairs: bytes, keys: int | None = None) -> bytes:
    count = len(pairs) if keys is None else keys
    return b"GGUF" + struct.pack("<IQQ", 3, 0, count) + b"".join(pairs)


WINDOW = string(b"x.context_length") + struct.pack("<II", 4, 5_000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF",
        b"GGUF" + b"\xff" * 64,
        header(keys=2**60),
        header(string(b"a" * 10) + struct.pack("<I", 99)),
        header(struct.pack("<Q", 2**62)),
        header(string(b"a") + struct.pack("<IIQ", 9, 8, 2**60)),
        header(string(b"a") + struct.pack("<IIQ", 9, 9, 5)),
        header(string(b"a") + struct.pack("<IQ", 8, 2**63)),
    ],
)
def test_hostile_gguf_header_has_no_facts(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    assert facts_of(path).context_tokens is None


def test_gguf_header_is_read_behind_a_vocabulary(tmp_path: Path) -> None:
    words = struct.pack("<IIQ", 9, 8, 3) + string(b"a") + string(b"bc") + string(b"")
    template = struct.pack("<I", 8) + string(b"{% if tools %}{% endif %}")
    path = tmp_path / "model.gguf"
    path.write_bytes(
        header(
            string(b"tokenizer.ggml.tokens") + words,
            WINDOW,
            string(b"tokenizer.chat_template") + template,
        )
    )
    found = facts_of(path)
    assert (found.context_tokens, found.takes_tools) == (5_000, True)
