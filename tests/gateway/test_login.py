"""Logging browsers in: codes, cookies, and what they can be used for."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Mapping
from hashlib import sha256

import anyio
import pytest
from tests.gateway.http_client import Answer, request
from tests.gateway.test_websocket import connected, open_websocket
from tests.support.server_process import ServerProcess

from nplt_gateway.login import device_of
from nplt_gateway.logins import CODE_SECONDS_MAX, Logins

Start = Callable[..., ServerProcess]

ADA, BOB = "ada's token", "bob's token"
USERS = [
    {"name": name, "token_sha256": sha256(token.encode()).hexdigest()}
    for name, token in (("ada", ADA), ("bob", BOB))
]


def new_code(server: ServerProcess, token: str | None = None) -> str:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    made = request(f"{server.http_url}login/codes", "POST", headers=headers)
    assert made.status == 201
    code: str = made.json["code"]
    return code


def log_in(server: ServerProcess, **credentials: str) -> Answer:
    return request(f"{server.http_url}login", "POST", body=credentials)


def cookie_of(answer: Answer) -> dict[str, str]:
    assert answer.status == 200
    return {"cookie": answer.headers["set-cookie"].partition(";")[0]}


def who_is(server: ServerProcess, cookie: Mapping[str, str]) -> object:
    return request(f"{server.http_url}login", headers=cookie).json["user"]


def test_a_code_logs_in_once(shared_server: ServerProcess) -> None:
    code = new_code(shared_server)
    cookie = cookie_of(log_in(shared_server, code=code))
    assert who_is(shared_server, cookie) == "local"
    again = log_in(shared_server, code=code)
    assert (again.status, again.error["code"]) == (401, "login_failed")


def test_a_code_may_be_typed_in_small_letters(shared_server: ServerProcess) -> None:
    assert log_in(shared_server, code=f" {new_code(shared_server).lower()} ").status == 200


@pytest.mark.parametrize("credentials", [{"code": "AAAA-AAAA-AAAA"}, {"token": "x"}, {}])
def test_wrong_credentials_set_no_cookie(
    shared_server: ServerProcess, credentials: dict[str, str]
) -> None:
    refused = log_in(shared_server, **credentials)
    assert refused.status == 401
    assert "set-cookie" not in refused.headers


def test_the_cookie_is_for_this_server_and_out_of_reach_of_scripts(
    shared_server: ServerProcess,
) -> None:
    port = shared_server.http_url.rstrip("/").rpartition(":")[2]
    attributes = log_in(shared_server, code=new_code(shared_server)).headers["set-cookie"]
    assert attributes.startswith(f"nplt-{port}=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(attributes.split("; "))
    assert "Domain" not in attributes


def test_a_login_survives_a_restart_of_the_server(start_server: Start) -> None:
    server = start_server("--http-port", "0")
    name, _, secret = cookie_of(log_in(server, code=new_code(server)))["cookie"].partition("=")
    server.restart()
    port = server.http_url.rstrip("/").rpartition(":")[2]
    assert who_is(server, {"cookie": f"nplt-{port}={secret}"}) == "local"
    assert name.startswith("nplt-")


def test_the_database_of_logins_is_private_and_has_no_secrets(server: ServerProcess) -> None:
    code = new_code(server)
    secret = cookie_of(log_in(server, code=code))["cookie"].partition("=")[2]
    path = server.data_dir / "logins.sqlite"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    stored = path.read_bytes()
    assert secret.encode() not in stored
    assert code.encode() not in stored


def test_users_with_tokens_log_in_by_token_and_get_their_own_login(start_server: Start) -> None:
    server = start_server(users=USERS)
    refused = request(f"{server.http_url}login/codes", "POST")
    assert refused.status == 401
    cookies = {token: cookie_of(log_in(server, token=token)) for token in (ADA, BOB)}
    assert [who_is(server, cookies[token]) for token in (ADA, BOB)] == ["ada", "bob"]
    by_code = cookie_of(log_in(server, code=new_code(server, ADA)))
    assert who_is(server, by_code) == "ada"
    listed = request(f"{server.http_url}logins", headers=cookies[BOB]).json["logins"]
    assert len(listed) == 1


def test_a_user_can_not_revoke_the_login_of_another(start_server: Start) -> None:
    server = start_server(users=USERS)
    cookies = {token: cookie_of(log_in(server, token=token)) for token in (ADA, BOB)}
    (login,) = request(f"{server.http_url}logins", headers=cookies[ADA]).json["logins"]
    url = f"{server.http_url}logins/{login['id']}"
    assert request(url, "DELETE", headers=cookies[BOB]).status == 404
    assert who_is(server, cookies[ADA]) == "ada"


def test_a_new_token_ends_the_logins_of_the_old_one(start_server: Start) -> None:
    server = start_server(users=USERS)
    cookies = [cookie_of(log_in(server, token=token)) for token in (ADA, BOB)]
    secrets = [each["cookie"].partition("=")[2] for each in cookies]
    server.settings["users"] = [{**USERS[0], "token_sha256": "0" * 64}, USERS[1]]
    server.restart()
    port = server.http_url.rstrip("/").rpartition(":")[2]
    users = [who_is(server, {"cookie": f"nplt-{port}={secret}"}) for secret in secrets]
    assert users == [None, "bob"]


def test_a_websocket_is_logged_in_by_the_cookie(start_server: Start) -> None:
    server = start_server(users=USERS)
    cookie = cookie_of(log_in(server, token=BOB))
    with connected(server, additional_headers=cookie) as client:
        assert client.hello()["user"] == "bob"
    with connected(server) as client:
        assert client.hello()["code"] == "unauthorized"


def test_revoking_a_login_closes_its_websocket(server: ServerProcess) -> None:
    cookie = cookie_of(log_in(server, code=new_code(server)))
    (login,) = request(f"{server.http_url}logins", headers=cookie).json["logins"]
    assert login["is_this"]
    with connected(server, additional_headers=cookie) as client:
        client.hello()
        assert request(f"{server.http_url}logins/{login['id']}", "DELETE").status == 200
        assert b"logged out" in b"".join(frame.payload for frame in client.until_closed())
    assert who_is(server, cookie) is None


def test_logging_out_ends_the_login_and_clears_the_browser(server: ServerProcess) -> None:
    cookie = cookie_of(log_in(server, code=new_code(server)))
    origin = {"origin": server.http_url.rstrip("/")}
    done = request(f"{server.http_url}logout", "POST", body={}, headers={**cookie, **origin})
    assert "storage" in done.headers["clear-site-data"]
    assert "Max-Age=0" in done.headers["set-cookie"]
    assert who_is(server, cookie) is None


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "login/codes"), ("GET", "logins"), ("DELETE", "logins/X"), ("POST", "markdown")],
)
def test_a_page_without_a_login_gets_nothing(
    shared_server: ServerProcess, method: str, path: str
) -> None:
    origin = {"origin": shared_server.http_url.rstrip("/")}
    body = {"texts": ["a"]} if path == "markdown" else None
    refused = request(f"{shared_server.http_url}{path}", method, body=body, headers=origin)
    assert (refused.status, refused.error["code"]) == (401, "not_logged_in")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1"])
def test_a_page_of_another_origin_can_not_use_the_cookie(
    shared_server: ServerProcess, origin: str
) -> None:
    cookie = cookie_of(log_in(shared_server, code=new_code(shared_server)))
    headers = {**cookie, "origin": origin}
    assert request(f"{shared_server.http_url}logins", headers=headers).status == 403
    with pytest.raises(Exception, match="403"):
        open_websocket(shared_server, additional_headers=cookie, origin=origin)


def test_a_login_by_a_form_of_another_page_is_refused(shared_server: ServerProcess) -> None:
    code = new_code(shared_server)
    sent = request(
        f"{shared_server.http_url}login",
        "POST",
        body=f"code={code}".encode(),
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert sent.status == 415


class _Users:
    """Stands in for the admission: it knows the tokens of users."""

    def token_mark(self, user: str) -> str | None:
        return {"ada": "1"}.get(user)


async def test_codes_and_logins_end_by_themselves(tmp_path: anyio.Path) -> None:
    now = [1_000.0]
    users: object = _Users()
    logins = Logins(tmp_path / "logins.sqlite", users, clock=lambda: now[0])  # type: ignore[arg-type]
    code = await logins.make_code("ada")
    now[0] += CODE_SECONDS_MAX + 1
    assert await logins.redeem(code, "a browser") is None
    redeemed = await logins.redeem(await logins.make_code("ada"), "a browser")
    assert redeemed is not None
    now[0] += 30 * 24 * 3_600
    assert await logins.find(redeemed[1]) is not None
    now[0] += 61 * 24 * 3_600
    assert await logins.find(redeemed[1]) is None
    assert await logins.of_user("ada") == []


async def test_at_most_a_hundred_codes_wait(tmp_path: anyio.Path) -> None:
    now = [1_000.0]
    users: object = _Users()
    logins = Logins(tmp_path / "logins.sqlite", users, clock=lambda: now[0])  # type: ignore[arg-type]
    codes = []
    for _ in range(101):
        now[0] += 0.1
        codes.append(await logins.make_code("ada"))
    assert await logins.redeem(codes[0], "a browser") is None
    assert await logins.redeem(codes[1], "a browser") is not None


@pytest.mark.parametrize(
    ("agent", "device"),
    [
        ("Mozilla/5.0 (Linux; Android 15) AppleWebKit/537.36 Chrome/140.0 Mobile Safari/537.36",
         "Chrome on Android"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18.0 Safari/604.1",
         "Safari on iPhone"),
        ("Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15; rv:140.0) Gecko/20100101 Firefox/140.0",
         "Firefox on macOS"),
        ("curl/8.5.0", "curl/8.5.0"),
        ("", "an unnamed program"),
        ("\x1b[31mred", "[31mred"),
    ],
)  # fmt: skip
def test_devices_are_named_by_browser_and_system(agent: str, device: str) -> None:
    assert device_of(agent) == device


def test_a_code_is_long_enough_to_type_and_not_to_guess(shared_server: ServerProcess) -> None:
    assert re.fullmatch(r"[A-Z2-9]{4}(-[A-Z2-9]{4}){2}", new_code(shared_server))
