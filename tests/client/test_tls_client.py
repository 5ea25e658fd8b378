"""`nplts://`: the same conversation inside TLS, and strangers are not trusted."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from tests.client.scripted_peer import Script, Talk, scripted_peer, whole_turn

import nplt_client
from nplt_client.errors import CannotConnect, ConfigurationError
from nplt_client.settings import parse_url
from nplt_client.wire.blocking import Deadline, open_running
from nplt_protocol.messages import Prompt


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("making a certificate needs openssl")
    folder = tmp_path_factory.mktemp("tls")
    file = folder / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    subprocess.run(
        [*command.split(), "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")],
        check=True,
        capture_output=True,
    )  # fmt: skip
    file.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return file


def inside_tls(script: Script, certificate: Path) -> Script:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def serve(talk: Talk) -> None:
        with context.wrap_socket(talk.wire, server_side=True) as secured:
            script(Talk(secured, piece_bytes=None))

    return serve


def answers(talk: Talk) -> None:
    talk.welcome()
    talk.answer("in private")
    talk.wait_until_gone()


def expects_to_be_refused(talk: Talk) -> None:
    raise AssertionError("the client should not have come this far")


async def test_the_asynchronous_client_speaks_tls(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with scripted_peer(inside_tls(answers, certificate)) as peer:
        async with nplt_client.connect(peer.url.replace("nplt:", "nplts:")) as client:
            assert await client.ask_text("hello") == "in private"


def test_the_blocking_connection_speaks_tls(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with scripted_peer(inside_tls(answers, certificate)) as peer:
        address = parse_url(peer.url.replace("nplt:", "nplts:"))
        with open_running(address, Deadline(40)) as link:
            turn = link.ask(Prompt(text="hello"))
            assert link.result(turn).turn_id == "turn-1"
            events = list(link.events(turn))
    assert events == list(whole_turn("in private"))


def test_an_untrusted_certificate_is_refused(certificate: Path) -> None:
    def script(talk: Talk) -> None:
        with pytest.raises(ssl.SSLError):
            inside_tls(expects_to_be_refused, certificate)(talk)

    with scripted_peer(script) as peer, pytest.raises(CannotConnect, match="certificate"):
        open_running(parse_url(peer.url.replace("nplt:", "nplts:")), Deadline(40))


async def test_the_asynchronous_client_refuses_an_untrusted_certificate_too(
    certificate: Path,
) -> None:
    def script(talk: Talk) -> None:
        with pytest.raises(ssl.SSLError):
            inside_tls(expects_to_be_refused, certificate)(talk)

    with scripted_peer(script) as peer, pytest.raises(CannotConnect, match="certificate"):
        async with nplt_client.connect(peer.url.replace("nplt:", "nplts:")):
            pass


@pytest.mark.parametrize("is_named_in", ["environment", "client.toml"])
def test_a_private_authority_is_trusted_where_it_is_named(
    certificate: Path, is_named_in: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    if is_named_in == "environment":
        monkeypatch.setenv("NPLT_CA_FILE", str(certificate))
    else:
        (tmp_path / "nplt").mkdir()
        (tmp_path / "nplt" / "client.toml").write_text(f'[tls]\nca = "{certificate}"\n')
    with scripted_peer(inside_tls(answers, certificate)) as peer:
        address = parse_url(peer.url.replace("nplt:", "nplts:"))
        with open_running(address, Deadline(40)) as link:
            assert link.result(link.ask(Prompt(text="hello"))).turn_id == "turn-1"


def test_an_untrusted_certificate_error_names_the_option_for_a_private_authority(
    certificate: Path,
) -> None:
    def script(talk: Talk) -> None:
        with pytest.raises(ssl.SSLError):
            inside_tls(expects_to_be_refused, certificate)(talk)

    with scripted_peer(script) as peer, pytest.raises(CannotConnect, match="--ca FILE"):
        open_running(parse_url(peer.url.replace("nplt:", "nplts:")), Deadline(40))


@pytest.mark.parametrize(
    ("content", "why"), [(None, "can't read"), ("no certificate", "holds no certificate")]
)
async def test_an_unusable_file_of_authorities_is_a_configuration_error(
    content: str | None, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("NPLT_CA_FILE", str(file))
    with pytest.raises(ConfigurationError, match=why):
        async with nplt_client.connect("nplts://127.0.0.1:1"):
            pass


def speaks_no_tls(talk: Talk) -> None:
    talk.wire.sendall(b"\x01\x00\x00\x00\x05hello")
    talk.wire.recv(1)


def test_tls_to_a_plain_port_suggests_nplt() -> None:
    with (
        scripted_peer(speaks_no_tls) as peer,
        pytest.raises(CannotConnect, match="does not speak TLS; try nplt://"),
    ):
        open_running(parse_url(peer.url.replace("nplt:", "nplts:")), Deadline(40))


async def test_a_plain_connection_to_a_tls_port_suggests_nplts(certificate: Path) -> None:
    def script(talk: Talk) -> None:
        with pytest.raises(ssl.SSLError):
            inside_tls(expects_to_be_refused, certificate)(talk)

    with scripted_peer(script) as peer, pytest.raises(CannotConnect, match="try nplts://"):
        async with nplt_client.connect(peer.url):
            pass
    with scripted_peer(script) as peer, pytest.raises(CannotConnect, match="try nplts://"):
        open_running(parse_url(peer.url), Deadline(40))
