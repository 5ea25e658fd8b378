"""A conversation with everything in it goes on at each server of `tests.vendors.local_servers`:
calls of another model, a picture, a notebook that a tool changes, a turn that fails after its
tools. Whatever the server refuses is sent in another form, and nothing is hidden."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from anyio.from_thread import start_blocking_portal
from tests.client.nplt_process import run_nplt
from tests.end_to_end.test_servers_with_rules_of_their_own import picture
from tests.support.server_thread import serving
from tests.vendors.answers import Answer, Call, ToolCall, say
from tests.vendors.faults import Status
from tests.vendors.local_servers import PRESETS, Preset, local_server

TYPES = {"mistral", "groq", "deepseek", "openrouter", "ollama"}
GO_ON, NOTE, FAIL = PROMPTS = ("Go on.", "Note it, please.", "Note it, and fail.")
WROTE = ToolCall("notebook", '{"action": "append", "text": "seen"}')


def script(call: Call) -> Answer:
    """Does what the last prompt says: writes into the notebook, and then fails or answers. The
    results may be messages, or text behind the prompt."""
    shown = "\n".join(str(message["content"]) for message in call.body["messages"])
    place, prompt = max((shown.rfind(each), each) for each in PROMPTS)
    roles = [message["role"] for message in call.body["messages"]]
    has_written = "tool" in roles[-3:] or "The notebook has" in shown[place:]
    if prompt != GO_ON and call.body.get("tools") and not has_written:
        return Answer(parts=(WROTE,))
    if prompt == FAIL:
        return Answer(parts=say("no").parts, fault=Status(status=500))
    return say("fine")


def cases() -> Iterator[Any]:
    """Each server with each of its models, as itself where there is such a type of provider, and as
    a server of OpenAI's API. Quickly only the first case of each server."""
    quick: set[str] = set()
    for preset in PRESETS:
        for is_known in [True, False] if preset.name in TYPES else [False]:
            marks = [pytest.mark.slow] if preset.name in quick else []
            quick.add(preset.name)
            known = "known" if is_known else "unknown"
            name = f"{preset.name}-{preset.model.replace('/', '-')}-{known}"
            yield pytest.param(preset, is_known, id=name, marks=marks)


@pytest.mark.parametrize(("preset", "is_known"), [*cases()])
def test_a_conversation_goes_on_and_nothing_is_hidden(
    tmp_path: Path, preset: Preset, is_known: bool
) -> None:
    image = str(picture(tmp_path / "red.png"))
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(local_server(preset, script)) as server,
    ):
        (tmp_path / "key").write_text(server.key)
        (tmp_path / "key").chmod(0o600)
        box = {
            "id": "box",
            "type": preset.name if is_known else "openai",
            "base_url": server.openai_url,
            "api_key_file": str(tmp_path / "key"),
            "api": "chat",
            "models": [preset.model],
        }
        settings = {
            "providers": [{"id": "offline", "type": "offline", "words_per_second": 0}, box],
            "models": {f"box/{preset.model}": {"images": True}},
            "tools": {"*": "allow"},
            "limits": {"retries_max": 0},
        }
        with serving(tmp_path / "data", settings) as port:
            address = f"nplt://127.0.0.1:{port}"

            def ask(*words: str) -> dict[str, Any]:
                done = run_nplt("ask", "--json", "-q", *words, home=tmp_path, server=address)
                result: dict[str, Any] = orjson.loads(done.stdout)
                return result

            ask("-m", "offline/echo", '!tool notebook {"action": "append", "text": "first"}')
            here = ("-c", "-m", f"box/{preset.model}")
            assert ask(*here, "-a", image, GO_ON)["state"] == "completed"
            assert ask(*here, NOTE)["state"] == "completed"
            assert ask(*here, FAIL)["state"] == "failed"
            for _ in range(2):
                assert ask(*here, GO_ON)["state"] == "completed"
            refused = len(server.rejections)
            assert ask(*here, GO_ON)["state"] == "completed"
            history = run_nplt("history", "@last", home=tmp_path, server=address).stdout
        assert [each.message for each in server.rejections[refused:]] == []
    assert "hidden" not in history
