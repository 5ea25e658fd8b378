"""What people are told when a provider, an address or an MCP server is wrong: the cause, and the
setting to change."""

from __future__ import annotations

import json
import logging
import socket
import sys
from pathlib import Path

import pytest
from tests.client.nplt_process import run_nplt
from tests.support.raw_client import TOOLS, RawClient
from tests.support.scripted_vendor import Reply, chat, refusal, vendor
from tests.support.server_thread import serving


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def error_of(tmp_path: Path, base_url: str, **more: object) -> str:
    """What `nplt ask` says of a provider at that address."""
    provider = {"id": "box", "type": "openai", "api": "chat", "base_url": base_url, "models": ["m"]}
    settings = {"providers": [{**provider, **more}], "limits": {"retries_max": 0}}
    with serving(tmp_path / "data", settings) as port:
        asked = run_nplt("ask", "hi", home=tmp_path, server=f"nplt://127.0.0.1:{port}")
    assert asked.returncode == 6
    return asked.stderr


def test_a_refused_connection_names_the_address_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    base_url = f"http://127.0.0.1:{free_port()}/v1"
    words = error_of(tmp_path, base_url)
    assert f"nothing listens at {base_url[7:-3]}: start that server" in words
    assert f"correct base_url ({base_url})" in words
    assert "box/m: nothing listens at" in caplog.text


def test_an_unknown_host_is_named(tmp_path: Path) -> None:
    words = error_of(tmp_path, "http://no-such-host.invalid/v1")
    assert "there is no host 'no-such-host.invalid': correct base_url" in words


def test_tls_to_a_plain_port_says_http(tmp_path: Path) -> None:
    with vendor(chat("Hello")) as server:
        words = error_of(tmp_path, server.url.replace("http://", "https://"))
    assert "does not speak TLS at this port" in words
    assert "must probably begin with http://" in words


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        # github.com/golang/go src/net/http/server.go: "HTTP/1.0 400 Bad Request\r\n\r\nClient
        # sent an HTTP request to an HTTPS server.\n"
        (
            Reply(
                status=400,
                body=b"Client sent an HTTP request to an HTTPS server.\n",
                content_type="text/plain",
            ),
            "the provider wants TLS: base_url must begin with https://",
        ),
        # github.com/nginx/nginx src/http/ngx_http_special_response.c, ngx_http_error_497_page:
        # "<head><title>400 The plain HTTP request was sent to HTTPS port</title></head>"
        (
            Reply(
                status=400,
                body=b"<html>\n<head><title>400 The plain HTTP request was sent to HTTPS port"
                b"</title></head>",
                content_type="text/html",
            ),
            "the provider wants TLS",
        ),
        # A login page of a proxy, with the status of success
        (
            Reply(body=b"<!DOCTYPE html><title>Sign in &amp; go</title>", content_type="text/html"),
            "a web page 'Sign in & go' came instead of an answer (200)",
        ),
        (
            Reply(status=404, body=b"<html><title>Not Found</title>", content_type="text/html"),
            "base_url names another server",
        ),
        (
            Reply(status=502, body=b"<html><title>502 Bad Gateway</title>"),
            "has a problem of its own (502) (502 Bad Gateway)",
        ),
        # llama.cpp, tools/server/README.md: {"error":{"code":503,"message":"Loading model",
        # "type":"unavailable_error"}}
        (
            Reply(
                status=503,
                body=b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}',
            ),
            "the provider loads its model",
        ),
        # github.com/golang/go src/net/http/server.go: "func NotFound(w ResponseWriter, r *Request)
        # { Error(w, "404 page not found", StatusNotFound) }"
        (
            Reply(status=404, body=b"404 page not found\n", content_type="text/plain"),
            "the provider says: 404 page not found",
        ),
    ],
)
def test_an_error_names_the_proxy_between_the_server_and_the_provider(
    tmp_path: Path, reply: Reply, words: str
) -> None:
    with vendor(reply) as server:
        assert words in error_of(tmp_path, server.url)


@pytest.mark.parametrize(
    ("finish_reason", "words"),
    [
        ("length", "used up the length of its answer"),
        ("content_filter", "content filter held the answer back"),
    ],
)
def test_an_answer_without_a_word_says_why(tmp_path: Path, finish_reason: str, words: str) -> None:
    with vendor(chat("", finish_reason)) as server:
        assert words in error_of(tmp_path, server.url)


def test_the_last_words_of_a_dead_mcp_server_are_listed_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    said = "Traceback ...\nKeyError: API_TOKEN is not set\n"
    script = f"import sys; sys.stderr.write({said!r}); sys.exit(1)"
    settings = {"mcp_servers": {"notes": {"command": [sys.executable, "-c", script]}}}
    with serving(tmp_path / "data", settings) as port, RawClient(port) as client:
        client.hello()
        while True:
            notes = client.request(TOOLS, {}).json["mcp_servers"]["notes"]
            if notes["state"] == "waiting":
                break
        assert notes["stderr"] == ["Traceback ...", "KeyError: API_TOKEN is not set"]
        shown = run_nplt("tools", home=tmp_path, server=f"nplt://127.0.0.1:{port}").stdout
    assert "  stderr: KeyError: API_TOKEN is not set" in shown
    assert "KeyError: API_TOKEN is not set" in caplog.text


ASKING = {"tools": {"now": "ask"}}


def test_ask_allows_and_denies_tools(tmp_path: Path) -> None:
    def status(port: int, *options: str) -> str:
        done = run_nplt(
            "ask",
            "--json",
            *options,
            "!tool now {}",
            home=tmp_path,
            server=f"nplt://127.0.0.1:{port}",
        )
        (call,) = json.loads(done.stdout)["tool_calls"]
        return f"{call['status']}: {call['result']}"

    with serving(tmp_path / "asking", ASKING) as port:
        assert status(port).startswith("skipped")
        assert status(port, "--allow", "other").startswith("skipped")
        assert status(port, "--allow", "now").startswith("success")
        assert status(port, "--allow", "*").startswith("success")
        assert "denied for this prompt" in status(port, "--allow", "now", "--deny", "now")
    with serving(tmp_path / "allowing", {}) as port:
        assert status(port).startswith("success")
        assert "denied for this prompt" in status(port, "--deny", "now")
        assert "denied for this prompt" in status(port, "--deny", "*")


def test_quiet_prints_nothing_on_stderr_but_errors(tmp_path: Path) -> None:
    with serving(tmp_path / "data", ASKING) as port:
        address = f"nplt://127.0.0.1:{port}"
        done = run_nplt("ask", "-q", "-s", "@last", "!tool now {}", home=tmp_path, server=address)
        assert (done.returncode, done.stderr) == (0, "")
        done = run_nplt("ask", "-q", "!fail", home=tmp_path, server=address)
        assert (done.returncode, "offline/echo fails" in done.stderr) == (6, True)


def test_a_wrong_key_is_explained_by_where_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("sk-wrong")
    key_file.chmod(0o600)
    monkeypatch.setenv("BOX_KEY", "sk-wrong")
    with vendor(refusal(401, "Incorrect API key provided")) as server:
        for settings, words in (
            ({"api_key_env": "BOX_KEY"}, "the key came from BOX_KEY in the server's environment"),
            ({"api_key_file": str(key_file)}, f"the key was read from {key_file}"),
            ({}, "the settings name no key for this provider"),
        ):
            said = error_of(tmp_path, server.url, **settings)
            assert f"does not accept the API key (401); {words}" in said
            assert "sk-wrong" not in said


def test_a_fallback_that_fails_too_says_so_once(tmp_path: Path) -> None:
    with vendor(refusal(401, "Incorrect API key provided")) as second:
        box = {"id": "box", "type": "openai", "api": "chat", "models": ["m"]}
        settings = {
            "providers": [
                {**box, "base_url": f"http://127.0.0.1:{free_port()}/v1"},
                second.provider("b"),
            ],
            "fallback": ["b/m"],
            "limits": {"retries_max": 0},
        }
        with serving(tmp_path / "data", settings) as port:
            asked = run_nplt("ask", "hi", home=tmp_path, server=f"nplt://127.0.0.1:{port}")
    assert asked.returncode == 6
    assert "does not accept the API key" in asked.stderr
    assert "b/m was asked instead of box/m: nothing listens at" in asked.stderr
