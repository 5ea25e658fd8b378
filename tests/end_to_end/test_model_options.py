"""Effort, temperature and length: of one prompt, and of a conversation until they are changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.client.chat_face import chat_with
from tests.client.nplt_process import run_nplt
from tests.support.server_thread import serving
from tests.vendors import emulator_in_thread
from tests.vendors.threads import HostedEmulator

from nplt_client import RequestRefused
from nplt_client.chat.commands import run_command
from nplt_client.sync import connect


@pytest.fixture
def vendors() -> Iterator[HostedEmulator]:
    with emulator_in_thread() as hosted:
        yield hosted


@contextmanager
def served(tmp_path: Path, vendors: HostedEmulator, model: str = "gpt-5.2") -> Iterator[str]:
    key = tmp_path / "key"
    key.write_text(vendors.key)
    key.chmod(0o600)
    box = {"id": "box", "type": "openai", "base_url": vendors.openai_url, "models": [model]}
    provider = {**box, "api_key_file": str(key), "api": "chat"}
    with serving(tmp_path / "data", {"providers": [provider]}) as port:
        yield f"nplt://127.0.0.1:{port}"


def asked(vendors: HostedEmulator, name: str) -> list[Any]:
    bodies = [each.body for each in vendors.received]
    return [body.get(name) for body in bodies if isinstance(body, dict)]


async def test_the_effort_of_a_conversation_survives_a_restart(
    tmp_path: Path, vendors: HostedEmulator
) -> None:
    with served(tmp_path, vendors) as url:
        async with chat_with(url) as face:
            await run_command(face, "/effort high")
            assert face.notices[-1] == "the effort is now high, in this conversation"
            await face.session.client.ask_text("one")
            await face.session.client.ask_text("two", options={"effort": "low"})
            await run_command(face, "/status")
            assert "\neffort" in face.notices[-1]
            session_id = face.session.client.session_id
    with served(tmp_path, vendors) as url, connect(url, session=session_id) as client:
        client.ask_text("three")
        status = client.status()
        assert status.conversation == {
            "session_id": session_id,
            "model": "box/gpt-5.2",
            "options": {"effort": "high"},
        }
        assert client.switch_model(options={"effort": None}).options is None
        client.ask_text("four")
    assert asked(vendors, "reasoning_effort") == ["high", "low", "high", None]


def test_temperature_and_output_limit_of_a_conversation_reach_the_model(
    tmp_path: Path, vendors: HostedEmulator
) -> None:
    with served(tmp_path, vendors, "gpt-4o-mini") as url, connect(url) as client:
        client.switch_model(options={"temperature": 0.2})
        choice = client.switch_model(options={"output_tokens": 77, "colour": "red"})
        assert choice.options == {"temperature": 0.2, "output_tokens": 77}
        client.ask_text("hello")
        fork = client.fork().session_id
        with connect(url, session=fork) as other:
            other.ask_text("hello again")
    assert asked(vendors, "temperature") == [0.2, 0.2]
    assert asked(vendors, "max_completion_tokens") == [77, 77]


def test_an_invalid_option_is_refused_and_changes_nothing(
    tmp_path: Path, vendors: HostedEmulator
) -> None:
    with served(tmp_path, vendors) as url, connect(url) as client:
        with pytest.raises(RequestRefused, match="effort is one of"):
            client.switch_model(options={"effort": "enormous"})
        assert client.models().options is None


def test_the_effort_option_of_ask_applies_to_one_prompt(
    tmp_path: Path, vendors: HostedEmulator
) -> None:
    with served(tmp_path, vendors) as url:
        done = run_nplt("ask", "--effort", "high", "hello", home=tmp_path, server=url)
        run_nplt("ask", "-c", "hello", home=tmp_path, server=url)
        wrong = run_nplt("ask", "--effort", "enormous", "hello", home=tmp_path, server=url)
    assert done.returncode == 0
    assert wrong.returncode != 0
    assert asked(vendors, "reasoning_effort") == ["high", None]
