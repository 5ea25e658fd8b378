"""The person's own settings: read, shown without secrets, checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.client.nplt_process import run_nplt

from nplt_client.settings import find_address, find_token, parse_url, read_config


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def write(environ: dict[str, str], text: str) -> Path:
    path = Path(read_config(environ).path)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_the_server_of_the_file_is_used_unless_another_is_named(environ: dict[str, str]) -> None:
    write(environ, 'server = "nplts://configured:7"')
    found = find_address(None, environ)
    assert (found.host, found.tls, found.is_default) == ("configured", True, False)
    assert find_address(None, {**environ, "NPLT_SERVER": "nplt://environ:1"}).host == "environ"
    assert find_address("nplt://argument:1", environ).host == "argument"


def test_the_token_of_the_config_file_is_sent_only_to_its_server(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "token").chmod(0o600)
    write(environ, f'server = "nplts://mine:7/notes"\ntoken_file = "{tmp_path}/token"')
    assert find_token(None, environ, address=find_address(None, environ)) == "s3cret"
    for other in ("nplts://other:7", "nplts://mine:8", "nplt://mine:7"):
        assert find_token(None, environ, address=parse_url(other)) is None
    assert find_token(None, environ) is None


def test_a_token_is_never_shown(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    (tmp_path / "token").chmod(0o600)
    write(environ, f'server = "nplt://mine:7"\ntoken_file = "{tmp_path}/token"')
    for more in ({}, {"NPLT_TOKEN": "s3cret"}, {"NPLT_TOKEN_FILE": str(tmp_path / "token")}):
        shown = run_nplt("config", "show", home=tmp_path, environ=more)
        checked = run_nplt("config", "check", home=tmp_path, environ=more)
        assert (shown.returncode, checked.returncode) == (0, 0)
        for done in (shown, checked):
            assert "s3cret" not in done.stdout + done.stderr
        assert "nplt://mine:7" in shown.stdout


@pytest.mark.parametrize(
    ("text", "error_text"),
    [
        ('servr = "x"', "did you mean 'server'?"),
        ("server = 7", "server is a text"),
        ('server = "http://x"', "is not a server address"),
        ('server = "nplt://h:1"\ntoken_file = "/no/such/file"', "can't read"),
        ('token_file = "x"', "it names none"),
        ("server = ", "client.toml"),
    ],
)
def test_every_mistake_in_the_config_file_is_a_sentence(
    environ: dict[str, str], tmp_path: Path, text: str, error_text: str
) -> None:
    write(environ, text)
    done = run_nplt("config", "check", home=tmp_path)
    assert done.returncode == 3
    assert error_text in done.stderr


def test_config_commands_print_path_settings_and_mistakes(
    environ: dict[str, str], tmp_path: Path
) -> None:
    path = write(environ, 'sever = "nplt://h:1"')
    assert run_nplt("config", "path", home=tmp_path).stdout == f"{path}\n"
    for command in (("config", "check"), ("ask", "hi")):
        done = run_nplt(*command, home=tmp_path)
        assert (done.returncode, done.stdout) == (3, "")
        assert "did you mean 'server'?" in done.stderr
