"""`nplts://`: the same conversation inside TLS, and strangers are not trusted."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from tests.client.scripted_peer import Script, Talk, scripted_peer, whole_turn

import nplt_client
from nplt_client.errors import CannotConnect
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
