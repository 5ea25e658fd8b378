"""What the documents show is true of this checkout: links, commands, settings, examples."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import click
import pytest
import yaml
from faults.__main__ import CHECKS
from tests.documents.pages import NAMES, PAGES, ROOT, anchors, blocks, commands, links, text_of
from tests.support.server_process import ServerProcess, clean_environment

import nplt_client
from nplt_client import NpltError
from nplt_client.cli import is_question, nplt
from nplt_server.cli import main as nplt_server
from nplt_server.settings import Limits, Settings

README_LINES_MAX = 120
PROGRAMS: dict[str, click.Group] = {"nplt": nplt, "nplt-server": nplt_server}


def run(command: list[str], text: str = "") -> str:
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env=clean_environment(),
        cwd=ROOT,
    )
    return done.stdout


# ------------------------------------------------------------------------------
# Places


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name: str) -> None:
    for page, anchor in links(name):
        assert page.exists(), page
        assert not anchor or anchor in anchors(page), (page.name, anchor)


@pytest.mark.parametrize("name", NAMES)
def test_every_place_it_names_is_there(name: str) -> None:
    rooms = {"client", "server", "protocol", "storage", "tests", "config", "examples", "docs"}
    for path in re.findall(r"`([\w.-]+/[\w./-]+)`", text_of(name)):
        if path.split("/")[0] in rooms:
            assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", NAMES)
def test_every_make_target_it_names_is_there(name: str) -> None:
    makefile = text_of("Makefile")
    for target in re.findall(r"(?:`|^    )(?:[A-Z_]+=\S+ )?make ([a-z-]+)", text_of(name), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_index_lists_every_page() -> None:
    listed = {page for page, _ in links("docs/index.md")}
    assert {page for page in PAGES if page.name != "README.md"} <= listed | {
        ROOT / "docs" / "index.md"
    }


def test_every_picture_is_shown_somewhere() -> None:
    shown = {page for name in NAMES for page, _ in links(name)}
    for picture in (ROOT / "docs" / "screenshots").iterdir():
        assert picture in shown, picture


def test_the_readme_is_short() -> None:
    assert len(text_of("README.md").splitlines()) <= README_LINES_MAX


# ------------------------------------------------------------------------------
# Commands


@pytest.mark.parametrize("name", NAMES)
def test_every_option_it_shows_is_one(name: str) -> None:
    for program, *words in commands(name):
        if program in PROGRAMS:
            check_command(program, words)
        elif words[:1] == ["-m"]:
            options = [word.partition("=")[0] for word in words if word.startswith("--")]
            assert all(option in help_of(words[1]) for option in options), words


def check_command(program: str, words: list[str]) -> None:
    """Commands, options and choices are those of `--help`; arguments are not looked at."""
    command: click.Command = PROGRAMS[program]
    while isinstance(command, click.Group):
        context = click.Context(command)
        options = [word for word in words[:1] if word.startswith("-")]
        if not words or (options and options[0] in _flags(command)):
            break
        found = command.get_command(context, words[0])
        if found is None:
            # Without a command: a question is asked, options and addresses are for the chat.
            assert program == "nplt", f"{program} has no command {words[0]}"
            asks = not options and is_question(words[0])
            assert asks or options or "://" in words[0], f"nplt has no command {words[0]}"
            found = command.get_command(context, "ask" if asks else "chat")
            assert found is not None
        else:
            words = words[1:]
        command = found
    flags = _flags(command)
    for place, word in enumerate(words):
        if not word.startswith("-") or word == "-":
            continue
        assert word in flags, f"{command.name} has no option {word}"
        kind = flags[word].type
        if isinstance(kind, click.Choice) and place + 1 < len(words):
            assert words[place + 1] in kind.choices, words


def _flags(command: click.Command) -> dict[str, click.Parameter]:
    return {
        flag: parameter
        for parameter in command.get_params(click.Context(command))
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }


@cache
def help_of(module: str) -> str:
    return run([sys.executable, "-m", module, "--help"])


def test_every_command_is_listed() -> None:
    listed = set(re.findall(r"`nplt ([a-z]+)`", text_of("docs/commands.md")))
    assert set(nplt.list_commands(click.Context(nplt))) <= listed
    shown = {
        words[0] for program, *words in commands("docs/storage.md") if program == "nplt-server"
    }
    shown |= {words[0] for _, *words in commands("docs/commands.md") if words}
    assert set(nplt_server.list_commands(click.Context(nplt_server))) <= shown


def test_every_exit_code_is_listed() -> None:
    client, server = text_of("docs/commands.md").split("## Exit codes")[1].split("`nplt-server` |")
    kinds = (getattr(nplt_client, name) for name in nplt_client.__all__)
    errors = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, NpltError)]
    # A refusal's depends on its code.
    codes = {code for kind in errors if isinstance(code := kind.exit_code, int)}
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", client, re.M)}
    assert listed == codes | {0, 2, 141}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", server, re.M)} == {
        0,
        1,
        2,
        3,
        78,
        141,
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_extra_it_names_is_one(name: str) -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    for extra in re.findall(r"'\.\[(\w+)\]'", text_of(name)):
        assert extra in project["optional-dependencies"], extra


# ------------------------------------------------------------------------------
# Settings


@pytest.mark.parametrize("name", NAMES)
def test_every_settings_file_it_shows_is_one(name: str) -> None:
    for block in blocks(name, "yaml"):
        Settings.model_validate(yaml.safe_load(block))


def test_every_group_of_settings_has_its_line() -> None:
    table = text_of("docs/settings.md").split("## The groups")[1].split("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", table)) >= set(Settings.model_fields)


def test_every_flag_it_lists_is_one() -> None:
    table = text_of("docs/settings.md").split("The flags,")[1].split("\n## ")[0]
    listed = set(re.findall(r"`(--[a-z-]+)", table))
    assert listed
    assert listed <= set(_flags(nplt_server))


def test_every_limit_it_names_is_one() -> None:
    table = text_of("docs/promises.md").split("## Limits")[1]
    assert set(re.findall(r"`(\w+_max)`", table)) <= set(Limits.model_fields)


def test_every_fault_that_can_be_tried_has_its_promise_and_its_last_counts() -> None:
    table = text_of("docs/promises.md").split("## How it is tested")[1].split("\n## ")[0]
    rows = re.findall(r"^\| .+ \| ([A-Z0-9-]+) \| (.*\d.*) \|$", table, re.M)
    assert sorted(check for check, _ in rows) == sorted(CHECKS)


def test_every_fault_that_can_be_tried_is_described() -> None:
    table = text_of("docs/faults.md")
    assert sorted(re.findall(r"^\| ([A-Z][A-Z0-9-]+) \|", table, re.M)) == sorted(CHECKS)


# ------------------------------------------------------------------------------
# Examples


def test_the_ten_line_client_gets_its_answer(shared_server: ServerProcess) -> None:
    ten_lines = blocks("docs/protocol.md", "python")[0]
    assert len(ten_lines.strip().splitlines()) == 10
    output = run([sys.executable, "-"], ten_lines.replace("9999", str(shared_server.port)))
    assert output == "hello from ten lines"


def test_the_line_of_shell_gets_its_answer(shared_server: ServerProcess) -> None:
    if shutil.which("nc") is None:
        pytest.skip("needs nc")
    line = blocks("docs/protocol.md", "sh")[0]
    assert "hello" in run(["sh", "-c", line.replace("9999", str(shared_server.port))])


def test_nothing_speaks_of_the_place_it_was_made_in() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not tracked:
        pytest.skip("not a checkout")
    here = Path(__file__).relative_to(ROOT)
    for name in tracked:
        path = ROOT / name
        if path.suffix in (".py", ".md", ".yaml", ".toml") and Path(name) != here:
            text = path.read_text()
            for word in ("/work/", "/root/", "../shared", "pypi.org", "DESIGN.md", "WIRE.md"):
                assert word not in text, (name, word)
