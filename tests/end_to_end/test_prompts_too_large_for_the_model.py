"""Prompts that do not fit the model's window are refused before they are stored, or cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from tests.client.nplt_process import run_nplt
from tests.support.raw_client import (
    CONTEXT_REQUEST,
    ERROR,
    HISTORY_REQUEST,
    PROMPT,
    SESSION_LIST,
    TURN_FINISHED,
    RawClient,
)
from tests.support.server_process import ServerProcess

MODELS = {
    "offline/echo": {"context_tokens": 8_192, "output_tokens": 1_024},
    "big/large": {"context_tokens": 400_000},
    "big/small": {"context_tokens": 4_096, "output_tokens": 512},
}
PROVIDERS = [
    {"id": "offline", "type": "offline", "words_per_second": 0},
    {
        "id": "big",
        "type": "openai",
        "base_url": "http://127.0.0.1:9/v1",
        "models": ["large", "small"],
    },
]
LARGE = "".join(f"line {number} of a long file\n" for number in range(2_200))
"""60 kB, about 18,000 tokens."""


@pytest.fixture
def server(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    return start_server(models=MODELS, providers=PROVIDERS, default_model="offline/echo")


def ask(
    server: ServerProcess, home: Path, *arguments: str, stdin: str = ""
) -> tuple[int, str, str]:
    url = f"nplt://127.0.0.1:{server.port}"
    done = run_nplt("ask", *arguments, home=home, server=url, stdin=stdin)
    return done.returncode, done.stdout, done.stderr


def test_a_prompt_larger_than_the_window_exits_9_and_nothing_is_stored(
    server: ServerProcess, tmp_path: Path
) -> None:
    code, stdout, stderr = ask(server, tmp_path, "review this", stdin=LARGE)
    assert (code, stdout) == (9, "")
    assert "the prompt takes about " in stderr
    assert "offline/echo has a window of 8,192" in stderr
    assert "big/large" in stderr
    assert "big/small" not in stderr
    with RawClient(server.port) as client:
        client.hello()
        assert client.request(SESSION_LIST).json["sessions"] == []


def test_ask_with_cut_exits_0_and_says_on_stderr_how_much_was_cut(
    server: ServerProcess, tmp_path: Path
) -> None:
    code, stdout, stderr = ask(server, tmp_path, "--cut", "review this", stdin=LARGE)
    assert code == 0
    assert "characters left out" in stdout
    assert stderr.startswith("the prompt was cut in the middle: offline/echo is shown about ")


def test_ask_json_has_how_much_of_a_prompt_was_cut(server: ServerProcess, tmp_path: Path) -> None:
    _, stdout, _ = ask(server, tmp_path, "--cut", "--json", "review this", stdin=LARGE)
    cut = orjson.loads(stdout)["cut"]
    assert 0 < cut["shown_tokens"] < 8_192 < cut["tokens"]
    _, stdout, _ = ask(server, tmp_path, "--json", "hello")
    assert "cut" not in orjson.loads(stdout)


def test_a_file_larger_than_the_window_exits_9(server: ServerProcess, tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    path.write_text(LARGE)
    code, stdout, stderr = ask(server, tmp_path, "-a", str(path), "review this")
    assert (code, stdout) == (9, "")
    assert "the prompt takes about " in stderr


def test_too_large_gives_the_sizes_and_the_models_that_would_do(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.hello()
        refused = client.request(PROMPT, {"text": LARGE})
        assert refused.type == ERROR
        error = refused.json
        assert client.request(HISTORY_REQUEST).json["messages"] == []
    assert (error["code"], error["field"], error["models"]) == ("too_large", "text", ["big/large"])
    assert (error["window_tokens"], error["on_too_long"]) == (8_192, "ask")
    assert error["tokens"] > error["budget_tokens"]


def test_a_long_conversation_is_shortened_and_its_short_prompts_are_taken(
    server: ServerProcess,
) -> None:
    with RawClient(server.port) as client:
        client.hello()
        for number in range(8):
            client.request(PROMPT, {"text": f"{number} {LARGE[:6_000]}"})
            assert client.event(TURN_FINISHED).json["state"] == "completed"


def test_the_context_of_each_call_that_was_made_can_be_shown_across_epochs(
    server: ServerProcess,
) -> None:
    with RawClient(server.port) as client:
        client.hello()
        outputs: list[int] = []
        for number in range(8):
            client.request(PROMPT, {"text": f"{number} {LARGE[:6_000]}"})
            finished = client.event(TURN_FINISHED).json
            assert finished["state"] == "completed"
            page = client.request(HISTORY_REQUEST, {"limit": 1}).json
            outputs.append(page["messages"][-1]["seq"])
        accounts = [client.request(CONTEXT_REQUEST, {"call": seq}).json for seq in outputs]
    assert all(account["totals"]["exact"] for account in accounts)
    assert len({account["epoch"] for account in accounts}) > 1
    for number, account in enumerate(accounts):
        live = [row for row in account["entries"] if row.get("detail") == "live"]
        prompts = [row["content"] for row in live if row["kind"] == "model_input"]
        assert f"{number} line 0 of a long file" in prompts[-1]


def test_the_context_of_a_call_shows_the_prompt_cut_as_it_was_sent(
    server: ServerProcess, tmp_path: Path
) -> None:
    ask(server, tmp_path, "--cut", "review this", stdin=LARGE)
    url = f"nplt://127.0.0.1:{server.port}"
    done = run_nplt("context", "--call", "last", "--json", home=tmp_path, server=url)
    account = orjson.loads(done.stdout)
    (shown,) = [row for row in account["entries"] if row.get("role") == "user"]
    assert shown["detail"] == "cut"
    assert account["totals"]["exact"]
    text = run_nplt("context", "--call", "last", home=tmp_path, server=url).stdout
    assert "sent to offline/echo for entry " in text


def test_a_prompt_stored_before_gets_its_receipt_again_from_a_smaller_model(
    server: ServerProcess,
) -> None:
    prompt = {"text": LARGE, "message_id": "m1"}
    with RawClient(server.port) as client:
        client.hello()
        first = client.request(PROMPT, {**prompt, "options": {"cut": True}}).json
        again = client.request(PROMPT, prompt).json
    assert (again["turn_id"], again["duplicate"]) == (first["turn_id"], True)


def test_with_on_too_long_cut_no_prompt_is_refused(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = start_server(models=MODELS, providers=PROVIDERS, on_too_long="cut")
    code, _, stderr = ask(server, tmp_path, "-m", "offline/echo", "-", stdin=LARGE)
    assert code == 0
    assert "was cut in the middle" in stderr
