"""B13: the same echo as B1 through TLS, against the same server without it.

The certificate is made on the spot by the `openssl` command; where there is
none, the benchmark is skipped.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks.echo_load import STRUCTURED, tls_talk
from benchmarks.echoing import ROUNDS, SECONDS, SMOKE_SECONDS, cpu_per_echo
from benchmarks.measuring import alternate
from benchmarks.processes import server
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict

IN_FLIGHT = 16


def encrypting(plan: Plan) -> list[Verdict]:
    question = Question(number="B13", what="TLS, 64 × 16, server CPU per frame")
    openssl = shutil.which("openssl")
    if openssl is None:
        return [question.skipped("there is no openssl to make a certificate with: install it")]
    certificate, key = _self_signed(plan.new_path("tls"), openssl)
    seconds = plan.sized(SECONDS, smoke=SMOKE_SECONDS)
    tls = {"listen": {"tls": {"cert": str(certificate), "key": str(key)}}}
    with (
        server(plan.new_path("plain")) as plain,
        server(plan.new_path("secret"), settings=tls) as secret,
        cpu_per_echo(STRUCTURED, plain, in_flight=IN_FLIGHT, seconds=seconds) as of_plain,
        cpu_per_echo(
            tls_talk(str(certificate)), secret, in_flight=IN_FLIGHT, seconds=seconds
        ) as of_tls,
    ):
        rounds = alternate({"tls": of_tls, "plain": of_plain}, rounds=plan.rounds(ROUNDS))
    details = rounds.summary("tls", "plain", unit="µs")
    return [question.at_most(2.2, rounds.ratio("tls", "plain"), unit="× plain", details=details)]


def _self_signed(directory: Path, openssl: str) -> tuple[Path, Path]:
    directory.mkdir()
    certificate, key = directory / "cert.pem", directory / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key
