"""The wheel and the sdist, installed into empty environments and used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "config" / "requirements.lock"


def run(*command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, **environ},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )


def built(kind: str, folder: Path) -> Path:
    done = run(sys.executable, "-m", "build", f"--{kind}", "--outdir", folder, ROOT)
    assert done.returncode == 0, done.stderr
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `nplt` and `nplt-server` in an environment that holds nothing else."""
    folder = tmp_path_factory.mktemp(request.param)
    package = built(request.param, folder / "dist")
    venv.create(folder / "venv", with_pip=True)
    done = run(folder / "venv" / "bin" / "python", "-m", "pip", "install", "-q", package)
    assert done.returncode == 0, done.stderr
    return folder / "venv" / "bin"


def test_every_dependency_is_in_the_lock_file_with_hashes() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    wanted = [
        *project["dependencies"],
        *(each for name, extra in project["optional-dependencies"].items()
          if name not in ("fuzz", "speed") for each in extra),
    ]  # fmt: skip
    text = LOCK.read_text()
    locked = {name.lower(): rest for name, rest in re.findall(r"^([\w.-]+)==(.*)$", text, re.M)}
    for each in wanted:
        match = re.match(r"[\w.-]+", each)
        assert match is not None
        name = match.group().lower().replace("_", "-")
        assert locked[name].endswith("\\"), f"{name} has no hashes"
    assert "://" not in text


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_two_builds_are_equal(kind: str, tmp_path: Path) -> None:
    first, second = (built(kind, tmp_path / name) for name in ("first", "second"))
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_installed_package_answers_and_prints_the_sample_settings(
    programs: Path, tmp_path: Path
) -> None:
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": "", "XDG_CONFIG_HOME": "", "XDG_DATA_HOME": ""}
    asked = run(programs / "nplt", "hello world", **home)
    try:
        assert (asked.stdout, asked.returncode) == ("hello world\n", 0), asked.stderr
    finally:
        run(programs / "nplt", "server", "stop", **home)
    sample = run(programs / "nplt-server", "config")
    assert sample.stdout == (ROOT / "config" / "server.yaml").read_text()
    for shell in ("bash", "zsh", "fish"):
        assert "_NPLT_COMPLETE" in run(programs / "nplt", "completion", shell).stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    programs: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "server.yaml"
    settings.write_text(
        "histories: [{id: team, backend: {type: redis, url: 'redis://127.0.0.1:1'}}]\n"
    )
    checked = run(programs / "nplt-server", "--config", settings, "--check", HOME=str(tmp_path))
    assert checked.returncode != 0
    assert "pip install 'nplt[redis]'" in checked.stderr
