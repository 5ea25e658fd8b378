"""Models without tools, and what a provider refuses: as a person and a script see it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.client.nplt_process import run_nplt
from tests.support.server_thread import serving
from tests.support.strict_server import Body, Refusal, StrictServer, refused, strict_server

NO_TOOLS = refused("registry.ollama.ai/library/gemma3:4b does not support tools")
# https://github.com/alan-turing-institute/t0-1/issues/69
FLAGGED = "your prompt was flagged as potentially violating our usage policy."
# https://github.com/anthropics/claude-code/issues/56511
BAD_PICTURE = "Could not process image"


class House:
    """A server with two providers, and its commands."""

    def __init__(self, home: Path, a: StrictServer, b: StrictServer) -> None:
        self.home, self.a, self.b = home, a, b
        self.port = 0

    def settings(self, **more: object) -> dict[str, object]:
        providers = [
            {"id": name, "type": "openai", "base_url": each.url, "api": "chat", "models": ["m"]}
            for name, each in (("a", self.a), ("b", self.b))
        ]
        sees = {"images": True}
        return {"providers": providers, "models": {"a/m": sees, "b/m": sees}, **more}

    def nplt(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        done = run_nplt(*arguments, home=self.home, server=f"nplt://127.0.0.1:{self.port}")
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr

    def ask(self, *arguments: str) -> dict[str, Any]:
        result: dict[str, Any] = orjson.loads(self.nplt("ask", "--json", *arguments)[0])
        assert result["state"] == "completed", result
        return result


@contextmanager
def running(home: Path, **more: object) -> Iterator[House]:
    with ExitStack() as stack:
        house = House(home, *(stack.enter_context(strict_server()) for _ in range(2)))
        house.port = stack.enter_context(serving(home / "data", house.settings(**more)))
        yield house


def refuses_tools(body: Body) -> Refusal | None:
    return NO_TOOLS if "tools" in body else None


def flags(word: str) -> Any:
    def rule(body: Body) -> Refusal | None:
        for place, message in enumerate(body["messages"]):
            if word in str(message["content"]):
                return refused(f"Invalid 'messages[{place}].content': {FLAGGED}")
        return None

    return rule


def test_ask_says_once_that_a_model_takes_no_tools_and_models_shows_it(tmp_path: Path) -> None:
    with running(tmp_path) as house:
        house.a.rule = refuses_tools
        answer, remarks = house.nplt("ask", "hello")
        assert answer == "fine\n"
        assert (
            "a/m takes no tools and is asked without them (the provider says: registry.ollama"
            in remarks
        )
        shown = house.nplt("models")[0]
        (row,) = (line.split() for line in shown.splitlines() if line.startswith("* a/m"))
        assert row[row.index("unknown") + 1] == "no", "the facts know it before the next call"
        assert "takes no tools" not in house.nplt("ask", "-s", "@last", "again")[1]
        assert "learned from refusals, for a week:\n  a/m: no tools (" in shown
        (notice,) = house.ask("a new one")["notices"]
        assert notice == "a/m takes no tools and is asked without them"
    assert ["tools" in body for body in house.a.received] == [True, False, False, False]


def test_a_fallback_without_tools_goes_on_where_a_model_with_tools_stopped(tmp_path: Path) -> None:
    with running(tmp_path, fallback=["b/m"], limits={"retries_max": 0}) as house:
        house.a.calls_tool, house.b.rule = "call_1", refuses_tools
        assert house.ask("look at the time")["model"] == "a/m"
        house.a.rule = lambda body: refused("overloaded", status=503)
        result = house.ask("-s", "@last", "and now?")
        assert (result["model"], result["text"]) == ("b/m", "fine")
    messages = house.b.received[-1]["messages"]
    assert {each["role"] for each in messages} <= {"system", "user", "assistant"}
    assert any("[The tool" in each["content"] for each in messages)


def test_no_model_is_offered_tools_if_all_are_denied(tmp_path: Path) -> None:
    with running(tmp_path, tools={"*": "deny"}) as house:
        assert house.ask("hello")["text"] == "fine"
        assert "tools" not in house.a.received[-1]


def test_what_one_provider_refuses_is_hidden_from_its_models_only(tmp_path: Path) -> None:
    with running(tmp_path) as house:
        house.ask("-m", "b/m", "poison")
        house.a.rule = flags("poison")
        result = house.ask("-s", "@last", "-m", "a/m", "two")
        (notice,) = result["notices"]
        assert notice.startswith("a refuses entry ")
        seq = notice.split("--unhide ")[1]
        assert "poison" not in str(house.a.received[-1])
        house.ask("-s", "@last", "-m", "b/m", "three")
        assert "poison" in str(house.b.received[-1])
        shown = house.nplt("history")[0]
        assert f"[{seq}] user" in shown
        assert next(line for line in shown.splitlines() if "hidden from a" in line).startswith(
            f"[{seq}]"
        )
        house.nplt("context", "--unhide", seq)
        assert "hidden" not in house.nplt("history")[0]
        house.a.rule = lambda body: None
        house.ask("-s", "@last", "-m", "a/m", "four")
        assert "poison" in str(house.a.received[-1])
        assert "is not hidden" in house.nplt("context", "--unhide", seq, code=2)[1]


def test_what_two_providers_refuse_is_hidden_from_all(tmp_path: Path) -> None:
    with running(tmp_path) as house:
        house.ask("-m", "b/m", "poison")
        house.a.rule = house.b.rule = flags("poison")
        for model in ("a/m", "b/m"):
            house.ask("-s", "@last", "-m", model, "go on")
        assert "poison" not in str(house.b.received[-1])
        assert "hidden from a, b" in house.nplt("history")[0]


def test_what_is_hidden_is_marked_in_chats_and_exports_and_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as house:
        house.ask("-m", "b/m", "poison")
        house.a.rule = flags("poison")
        house.ask("-s", "@last", "-m", "a/m", "go on")
        address = f"nplt://127.0.0.1:{house.port}"
        chat = ("chat", "--plain", "-c")
        said = run_nplt(*chat, home=house.home, server=address, stdin="/history\n").stderr
        assert "hidden from a" in said
        for form in ("md", "html"):
            assert "hidden from a" in house.nplt("export", "--format", form)[0]
        message = orjson.loads(house.nplt("history", "--json")[0])["messages"][0]
        assert (message["content"], message["hidden"]) == ("poison", "a")
    with serving(tmp_path / "data", house.settings()) as house.port:  # it is not open now
        assert "hidden from a" in house.nplt("history")[0]


def picture(path: Path) -> Path:
    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0\xff\0\0")
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return path


def has_picture(body: Body) -> bool:
    return "image_url" in str(body["messages"])


def test_of_a_prompt_with_a_refused_picture_only_the_picture_is_hidden(tmp_path: Path) -> None:
    path = str(picture(tmp_path / "red.png"))
    with running(tmp_path) as house:
        house.a.rule = lambda body: refused(BAD_PICTURE) if has_picture(body) else None
        result = house.ask("-m", "a/m", "-a", path, "what colour?")
        assert [has_picture(body) for body in house.a.received] == [True, False]
        assert "what colour?" in str(house.a.received[-1])
        assert result["notices"][0].startswith("a refuses the pictures of entry ")
        house.ask("-s", "@last", "-m", "b/m", "and you?")
        assert has_picture(house.b.received[-1])
        assert "hidden from a (its pictures)" in house.nplt("history")[0]


@pytest.mark.parametrize(
    "sentence",
    [
        # https://github.com/JohnnyZ93/oai-compatible-copilot/issues/229
        "No endpoints found that support image input",
        # https://github.com/BenedictKing/ccx/issues/95
        "Failed to deserialize the JSON body into the target type: messages[0]: unknown variant "
        "`image_url`, expected `text` at line 1 column 53929",
    ],
)
def test_a_model_without_eyes_is_asked_without_pictures_and_nothing_is_hidden(
    tmp_path: Path, sentence: str
) -> None:
    path = str(picture(tmp_path / "red.png"))
    with running(tmp_path) as house:
        house.a.rule = lambda body: refused(sentence, status=404) if has_picture(body) else None
        result = house.ask("-m", "a/m", "-a", path, "what colour?")
        assert result["notices"] == ["a/m takes no pictures and is shown none"]
        assert "hidden" not in house.nplt("history")[0]
        house.ask("-s", "@last", "again")
    assert [has_picture(body) for body in house.a.received] == [True, False, False]
