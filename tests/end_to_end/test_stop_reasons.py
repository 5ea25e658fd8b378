"""Why an answer ended, and who answered instead of whom: on the wire, on disk, in every command."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.client.nplt_process import run_nplt
from tests.support.raw_client import (
    CANCEL,
    ENTRY,
    HISTORY_REQUEST,
    PROMPT,
    TEXT_DELTA,
    RawClient,
)
from tests.support.scripted_vendor import Reply, chat, message, refusal, vendor
from tests.support.server_thread import serving


@pytest.mark.parametrize(
    ("reply", "reason", "words"),
    [
        # developers.openai.com/api/reference/resources/chat: "`length` if the maximum number of
        # tokens specified in the request was reached"
        (chat("The quick brown", "length", tokens=1024), "length", "cut at 1,024 tokens"),
        # the same: "`content_filter` if content was omitted due to a flag from our content filters"
        (chat("Once upon", "content_filter"), "filter", "cut by the provider's content filter"),
        # docs.mistral.ai/api: finish_reason is one of stop, length, model_length, error, tool_calls
        (chat("So far", "model_length"), "window", "cut, because the model's window is full"),
        # api-docs.deepseek.com/api/create-chat-completion: "insufficient_system_resource if the
        # request is interrupted due to insufficient resource of the inference system"
        (
            chat("So far", "insufficient_system_resource"),
            "insufficient_system_resource",
            "the provider stopped it (insufficient_system_resource)",
        ),
        (chat("All of it", "stop"), "end", ""),
    ],
)
def test_a_stop_reason_of_the_chat_api_is_in_every_view(
    tmp_path: Path, reply: Reply, reason: str, words: str
) -> None:
    with (
        vendor(reply) as server,
        serving(tmp_path / "data", {"providers": [server.provider()]}) as port,
        RawClient(port) as client,
    ):
        address = f"nplt://127.0.0.1:{port}"
        client.hello()
        client.request(PROMPT, {"text": "go"})
        seen = client.until_finished()
        answer = next(e.json["entry"] for e in seen if e.type == ENTRY and "call" in e.json)
        page = client.request(HISTORY_REQUEST, {}).json
        told = [seen[-1].json, answer, page["messages"][-1]]
        assert [one.get("stop_reason") for one in told] == [reason] * 3

        asked = run_nplt("ask", "--json", "go", home=tmp_path, server=address)
        assert json.loads(asked.stdout)["stop_reason"] == reason
        lines = run_nplt("ask", "--jsonl", "go", home=tmp_path, server=address).stdout.splitlines()
        assert json.loads(lines[-1])["stop_reason"] == reason
        asked = run_nplt("ask", "go", home=tmp_path, server=address)
        assert words in asked.stderr
        assert (words == "") == ("cut" not in asked.stderr and "stopped" not in asked.stderr)
        assert run_nplt("ask", "-q", "go", home=tmp_path, server=address).stderr == ""
        assert words in run_nplt("history", "@last", home=tmp_path, server=address).stdout
        for form in ("md", "html"):
            exported = run_nplt("export", "--format", form, home=tmp_path, server=address).stdout
            assert words.replace("'", "&#x27;") in exported or words in exported
        exported = run_nplt("export", "--format", "json", home=tmp_path, server=address).stdout
        assert json.loads(exported)["messages"][-1]["stop_reason"] == reason


@pytest.mark.parametrize(
    ("stopped", "reason"),
    [
        # platform.claude.com/docs/en/build-with-claude/handling-stop-reasons
        ("end_turn", "end"),
        ("max_tokens", "length"),
        ("refusal", "refusal"),
        ("model_context_window_exceeded", "window"),
    ],
)
def test_a_stop_reason_of_claude_after_some_text_is_reported(
    tmp_path: Path, stopped: str, reason: str
) -> None:
    with (
        vendor(message("Well, some text", stopped)) as server,
        serving(tmp_path / "data", {"providers": [server.claude()]}) as port,
    ):
        address = f"nplt://127.0.0.1:{port}"
        asked = run_nplt("ask", "--json", "go", home=tmp_path, server=address)
        answer = json.loads(asked.stdout)
        assert (answer["stop_reason"], answer["text"]) == (reason, "Well, some text")


def test_an_interrupted_answer_is_cancelled_in_the_record(tmp_path: Path) -> None:
    with serving(tmp_path / "data", {}) as port, RawClient(port) as client:
        client.hello()
        receipt = client.request(PROMPT, {"text": "!slow 60"}).json
        client.event(TEXT_DELTA)
        client.request(CANCEL, {"turn_id": receipt["turn_id"]})
        finished = client.until_finished()[-1].json
        assert (finished["state"], finished["stop_reason"]) == ("interrupted", "cancelled")
        stored = client.request(HISTORY_REQUEST, {}).json["messages"][-1]
        assert stored["stop_reason"] == "cancelled"


TWO = {"default_model": "a/m", "fallback": ["b/m"], "limits": {"retries_max": 0}}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        # What a proxy says for a server that is down
        (Reply(status=503, body=b"Service Unavailable", content_type="text/plain"), "overloaded"),
        # platform.claude.com/docs/en/api/errors: "529 - overloaded_error: The API is temporarily
        # overloaded."
        (refusal(529, "Overloaded"), "overloaded"),
        (refusal(500, "The server had an error while processing your request"), "unavailable"),
        (refusal(429, "Rate limit reached", headers={"Retry-After": "600"}), "rate_limited"),
    ],
)
def test_a_fallback_and_its_reason_are_on_stderr_and_in_json(
    tmp_path: Path, reply: Reply, reason: str
) -> None:
    with vendor(reply) as first, vendor(chat("Here I am")) as second:
        settings = {"providers": [first.provider("a"), second.provider("b")], **TWO}
        with serving(tmp_path / "data", settings) as port:
            address = f"nplt://127.0.0.1:{port}"
            answer = json.loads(
                run_nplt("ask", "--json", "go", home=tmp_path, server=address).stdout
            )
            instead = answer["fallback_from"]
            assert (answer["model"], instead["model"], instead["reason"]) == ("b/m", "a/m", reason)
            asked = run_nplt("ask", "go", home=tmp_path, server=address)
            assert (asked.stdout, asked.returncode) == ("Here I am\n", 0)
            assert "b/m answered instead of a/m: " in asked.stderr
            history = run_nplt("history", "@last", "--json", home=tmp_path, server=address)
            stored = json.loads(history.stdout)["messages"][-1]["fallback_from"]
            assert (stored["model"], stored["reason"]) == ("a/m", reason)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        # platform.openai.com/docs/guides/error-codes: "401 - Incorrect API key provided"
        (refusal(401, "Incorrect API key provided"), "does not accept the API key"),
        # github.com/BerriAI/litellm/pull/20837: {"error": {"message": "No connected db.", "type":
        # "no_db_connection", "code": "400"}}
        (
            Reply(
                status=400,
                body=b'{"error":{"message":"No connected db.","type":"no_db_connection",'
                b'"param":null,"code":"400"}}',
            ),
            "LiteLLM without a database says this of every key that is not its master key",
        ),
        (refusal(400, "Unrecognized request argument supplied: foo"), "refused the request"),
        # openrouter.ai/docs/api-reference/errors: "403: Your chosen model requires moderation and
        # your input was flagged"
        (refusal(403, "Your input was flagged"), "Your input was flagged"),
    ],
)
def test_no_fallback_answers_for_a_wrong_key_a_bad_request_or_moderation(
    tmp_path: Path, reply: Reply, words: str
) -> None:
    with vendor(reply) as first, vendor(chat("Here I am")) as second:
        settings = {"providers": [first.provider("a"), second.provider("b")], **TWO}
        with serving(tmp_path / "data", settings) as port, RawClient(port) as client:
            asked = run_nplt("ask", "go", home=tmp_path, server=f"nplt://127.0.0.1:{port}")
            client.hello()
            for _ in range(6):  # a wrong key pauses the provider after five
                client.request(PROMPT, {"text": "go"})
                assert client.until_finished()[-1].json["state"] == "failed"
    assert (asked.returncode, second.requests) == (6, [])
    assert words in asked.stderr


def test_a_long_retry_after_fails_at_once_and_names_the_time(tmp_path: Path) -> None:
    busy = refusal(429, "Rate limit reached", headers={"Retry-After": "5400"})
    with vendor(busy) as first:
        settings = {"providers": [first.provider("a")]}
        with serving(tmp_path / "data", settings) as port:
            for _ in range(2):
                asked = run_nplt("ask", "go", home=tmp_path, server=f"nplt://127.0.0.1:{port}")
                assert "UTC (in 90 min)" in asked.stderr
                assert "try again then" not in asked.stderr
    assert len(first.requests) == 1


def test_a_server_that_is_started_again_answers_though_its_provider_is_paused(
    tmp_path: Path,
) -> None:
    with vendor(chat("Here I am")) as first:
        provider, port_of_first = first.provider("a"), first.port
    settings = {"providers": [provider], "limits": {"retries_max": 0}}
    with serving(tmp_path / "data", settings) as port, RawClient(port) as client:
        client.hello()

        def ask() -> dict[str, object]:
            client.request(PROMPT, {"text": "go"})
            finished: dict[str, object] = client.until_finished()[-1].json
            return finished

        ends = [ask() for _ in range(6)]
        assert "nothing listens at 127.0.0.1" in str(ends[0]["error"])
        assert "is not asked for" in str(ends[-1]["error"])
        with vendor(chat("Here I am"), port=port_of_first) as again:
            deadline = time.monotonic() + 10
            while ask()["state"] != "completed":  # looked at four times a second
                assert time.monotonic() < deadline
            assert again.gets >= 1


def test_the_retries_of_one_prompt_count_as_one_failure(tmp_path: Path) -> None:
    with vendor(refusal(500, "boom")) as first:
        settings = {"providers": [first.provider("a")], "limits": {"retries_max": 2}}
        with serving(tmp_path / "data", settings) as port:
            asked = [
                run_nplt("ask", "go", home=tmp_path, server=f"nplt://127.0.0.1:{port}").stderr
                for _ in range(3)
            ]
    assert len(first.requests) == 9
    assert not any("is not asked" in words for words in asked)
