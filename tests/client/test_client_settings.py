"""Addresses and tokens: where they come from, and how mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_client.errors import ConfigurationError
from nplt_client.settings import Address, find_address, find_token, parse_url


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("nplt://example.org:1234", Address(host="example.org", port=1234)),
        ("nplt://example.org", Address(host="example.org", port=9999)),
        ("nplts://example.org:1", Address(host="example.org", port=1, tls=True)),
        ("nplt://[::1]:9999", Address(host="::1", port=9999)),
        ("nplt://[fe80::1%eth0]", Address(host="fe80::1%eth0", port=9999)),
        ("nplt://h:5/my%20notes", Address(host="h", port=5, session="my notes")),
        ("nplt://h:5/", Address(host="h", port=5)),
    ],
)
def test_an_address_is_parsed(url: str, address: Address) -> None:
    assert parse_url(url) == address


@pytest.mark.parametrize(
    "url",
    ["", "example.org:1", "http://h:1", "nplt://", "nplt://:1", "nplt://h:x", "nplt://h:0",
     "nplt://h:65536", "nplt://h:1/a/b", "nplt://::1:99", "nplt://a b:1", "nplt://u@h:1"],
)  # fmt: skip
def test_an_invalid_address_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_url(url)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_a_configuration_error(text: str) -> None:
    try:
        address = parse_url("nplt://" + text)
    except ConfigurationError:
        return
    assert address.host
    assert 1 <= address.port <= 65_535


@given(st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True), st.integers(1, 65_535), st.booleans())
def test_a_formatted_address_is_parsed_back(host: str, port: int, tls: bool) -> None:
    address = Address(host=host, port=port, tls=tls)
    assert parse_url(str(address)) == address


def test_the_argument_wins_over_the_environment_and_that_over_the_default() -> None:
    environ = {"NPLT_SERVER": "nplt://from-environment:1"}
    assert find_address("nplt://argument:2", environ).host == "argument"
    assert find_address(None, environ).host == "from-environment"
    default = find_address(None, {})
    assert (str(default), default.is_default) == ("nplt://127.0.0.1:9999", True)


def test_an_address_is_the_default_only_if_none_was_given() -> None:
    assert not find_address("nplt://127.0.0.1:9999", {}).is_default
    assert not find_address(None, {"NPLT_SERVER": "nplt://127.0.0.1:9999"}).is_default


def test_the_servers_own_port_setting_moves_the_default_address() -> None:
    assert find_address(None, {"NPLT_LISTEN__PORT": "7001"}).port == 7001
    with pytest.raises(ConfigurationError, match="NPLT_LISTEN__PORT"):
        find_address(None, {"NPLT_LISTEN__PORT": "many"})


def test_a_bad_address_in_the_environment_names_the_variable() -> None:
    with pytest.raises(ConfigurationError, match="NPLT_SERVER"):
        find_address(None, {"NPLT_SERVER": "nonsense"})


def test_a_token_comes_from_the_caller_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    file.chmod(0o600)
    environ = {"NPLT_TOKEN_FILE": str(file)}
    assert find_token(None, environ) == "from-file"
    assert find_token(None, {**environ, "NPLT_TOKEN": "from-environment"}) == "from-environment"
    assert find_token("from-caller", environ) == "from-caller"
    assert find_token(None, {}) is None


@pytest.mark.parametrize("content", [None, "  \n"])
def test_a_token_file_that_holds_no_token_is_a_configuration_error(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
        file.chmod(0o600)
    with pytest.raises(ConfigurationError, match="NPLT_TOKEN_FILE"):
        find_token(None, {"NPLT_TOKEN_FILE": str(file)})
