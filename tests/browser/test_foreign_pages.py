"""A hostile page in the owner's browser gets nothing: no read, no prompt, no approval."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.browser.conftest import NewWindow, Window
from tests.gateway.http_client import request
from tests.support.raw_client import SESSION_LIST, RawClient
from tests.support.server_process import ServerProcess

_ATTACK = """async (own) => {
    const results = {};
    const attempt = async (name, work) => {
        try { results[name] = await work(); } catch (error) { results[name] = "refused"; }
    };
    const read = (path, options) => async () => {
        const response = await fetch(own + path, { credentials: "include", ...options });
        return response.type === "opaque" ? "refused" : await response.text();
    };
    const json = { "content-type": "application/json" };
    await attempt("read the logins", read("logins"));
    await attempt("read without permission", read("logins", { mode: "no-cors" }));
    await attempt("render", read("markdown", { method: "POST", headers: json, body: "{}" }));
    await attempt("make a code", read("login/codes", { method: "POST" }));
    await attempt("chat", read("v1/chat/completions", { method: "POST", headers: json,
        body: JSON.stringify({ model: "echo", messages: [{ role: "user", content: "evil" }] }) }));
    await attempt("chat without permission", read("v1/chat/completions", { method: "POST",
        mode: "no-cors", headers: { "content-type": "text/plain" },
        body: JSON.stringify({ model: "echo", messages: [{ role: "user", content: "evil" }] }) }));
    await attempt("log out", read("logout", { method: "POST", mode: "no-cors" }));
    await attempt("connect", () => new Promise((resolve) => {
        const socket = new WebSocket(own.replace("http", "ws") + "ws");
        socket.onopen = () => resolve("connected");
        socket.onerror = () => resolve("refused");
    }));
    await attempt("frame", () => new Promise((resolve) => {
        const frame = document.createElement("iframe");
        frame.src = own;
        frame.onload = () => {
            try { resolve(frame.contentDocument?.body.innerText || "refused"); }
            catch { resolve("refused"); }
        };
        document.body.append(frame);
    }));
    await attempt("load its script", () => new Promise((resolve) => {
        const script = document.createElement("script");
        script.src = own + "page/0/frames.js";
        script.onload = () => resolve("loaded");
        script.onerror = () => resolve("refused");
        document.body.append(script);
    }));
    return results;
}"""


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><body>a prize</body>")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name it inherits
        pass


@pytest.fixture
def foreign_port() -> Iterator[int]:
    """A web server of somebody else on this machine: the same site, so it gets the cookie."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def conversations(server: ServerProcess) -> list[Any]:
    with RawClient(server.port) as client:
        client.hello()
        rows: list[Any] = client.request(SESSION_LIST).json["sessions"]
        return rows


@pytest.mark.parametrize(
    "host",
    [
        pytest.param("127.0.0.1", marks=pytest.mark.slow),
        pytest.param("localhost", marks=pytest.mark.slow),
        "rebound.example",
    ],
)
def test_a_page_of_another_origin_gets_nothing(
    server: ServerProcess, new_window: NewWindow, foreign_port: int, host: str
) -> None:
    window = new_window(server).log_in()
    window.ask("a secret")
    before = conversations(server)
    foreign = window.page.context.new_page()
    foreign.goto(f"http://{host}:{foreign_port}/")
    results = foreign.evaluate(_ATTACK, server.http_url)
    assert set(results.values()) == {"refused"}, json.dumps(results, indent=1)
    after = conversations(server)
    assert [row["message_count"] for row in after] == [row["message_count"] for row in before]
    window.page.reload()
    window.until_online()  # it is still logged in


def test_a_rebound_host_name_gets_nothing(server: ServerProcess, new_window: NewWindow) -> None:
    window = new_window(server).log_in()
    port = server.http_url.rstrip("/").rpartition(":")[2]
    rebound = f"http://rebound.example:{port}/"
    foreign = window.page.context.new_page()
    answer = foreign.goto(rebound)
    assert answer is not None
    assert answer.status == 403
    results = foreign.evaluate(_ATTACK, rebound)
    assert results.pop("connect") == "refused"
    for text in results.values():
        assert text in ("", "refused") or "this server is not called" in text


def test_a_page_can_not_frame_the_conversations(
    server: ServerProcess, new_window: NewWindow, foreign_port: int
) -> None:
    window = new_window(server).log_in()
    foreign = window.page.context.new_page()
    foreign.goto(f"http://127.0.0.1:{foreign_port}/")
    foreign.evaluate(
        "(own) => { const frame = document.createElement('iframe'); frame.src = own;"
        " document.body.append(frame); }",
        server.http_url,
    )
    foreign.wait_for_timeout(500)
    inside = [frame for frame in foreign.frames if frame.url.startswith(server.http_url)]
    assert all(frame.evaluate("() => typeof window.nplt") == "undefined" for frame in inside)


def test_logging_out_leaves_nothing_in_the_browser(
    server: ServerProcess, new_window: NewWindow
) -> None:
    window = new_window(server).log_in()
    window.ask("a secret")
    window.page.get_by_label("Prompt", exact=True).last.fill("a draft")
    window.page.locator(".account").click()
    window.click("Log out")
    window.page.get_by_role("heading", name="Log in").wait_for()
    assert window.run("localStorage.length") == 0
    assert window.page.context.cookies() == []
    window.open().page.get_by_role("heading", name="Log in").wait_for()
    code = request(f"{server.http_url}login/codes", "POST").json["code"]
    window.page.get_by_label("Code").fill(code.lower())
    window.page.keyboard.press("Enter")
    window.until_online()


@pytest.mark.slow
def test_a_revoked_browser_is_asked_to_log_in(server: ServerProcess, new_window: NewWindow) -> None:
    window: Window = new_window(server).log_in()
    (login,) = request(f"{server.http_url}logins").json["logins"]
    request(f"{server.http_url}logins/{login['id']}", "DELETE")
    window.page.get_by_role("heading", name="Log in").wait_for()
