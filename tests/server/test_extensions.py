"""The operator's own Python, as a server with such settings runs it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.support.raw_client import CONTEXT_REQUEST, RawClient
from tests.support.server_process import ServerProcess

from nplt_server.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "extensions.py"


def example_settings() -> dict[str, object]:
    """Those its docstring shows; the tests' servers start where Python finds `examples`."""
    text = EXAMPLE.read_text().partition("    extensions:\n")
    block = textwrap.dedent("    extensions:\n" + text[2].partition("\n\nand start")[0])
    settings: dict[str, object] = yaml.safe_load(
        block.replace('"extensions:', '"examples.extensions:')
    )
    return settings


def test_the_example_brings_a_tool_a_widget_a_counter_and_a_listener(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server(**example_settings(), models={"offline/echo": {"context_tokens": 2_048}})
    with RawClient(server.port) as client:
        client.hello({"protocol": 3})
        assert client.ask('!tool roll_dice {"sides": 20, "count": 3}').count(",") == 2
        assert "must be" in client.ask('!tool roll_dice {"sides": 1}')
        assert "ada has 3 points" in client.ask('!tool score {"player": "ada", "points": 3}')
        assert "ada has 5 points" in client.ask('!tool score {"player": "ada", "points": 2}')
        context = client.request(CONTEXT_REQUEST, {}).json
        assert "count_tokens" in str(context)
        client.ask("what does it show now?")
        (record,) = (server.data_dir / "history").glob("session_*.json")
        assert "## Score\\n- ada: 5" in record.read_text()
        for _ in range(6):
            client.ask("a long prompt that fills the window " * 30)
    assert "the context is nearly full" in server.log


def test_a_token_counter_that_raises_does_not_break_a_turn_and_is_logged_once(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server(
        extensions={"token_counter": "tests.support.raising_counter:count_tokens"}
    )
    with RawClient(server.port) as client:
        client.hello({"protocol": 3})
        assert "boom one" in client.ask("boom one")
        assert "boom two" in client.ask("boom two")
        assert "count_tokens" in str(client.request(CONTEXT_REQUEST, {}).json)
    assert server.log.count("can't count this") == 1


def test_an_own_tool_executor_runs_the_tools(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server(extensions={"tool_executor": "tests.support.own_tool_executor:shout"})
    with RawClient(server.port) as client:
        client.hello({"protocol": 3})
        assert "now for local: " in client.ask("!tool now {}")


MODULE = '''
from nplt_server.extensions import typed_tool

def untyped(x):
    """Has no types."""

def now() -> str:
    """Has the name of another tool."""

def works() -> str:
    """Works."""

class NotAWidget:
    name = "half"

def counts_badly(text: str) -> str:
    return text

def not_async(event, conversation):
    pass

something = 5
'''


@pytest.mark.parametrize(
    ("extensions", "error_text"),
    [
        ({"tools": ["no.such:thing"]}, "extensions.tools: 'no.such:thing' can't be loaded"),
        ({"tools": ["own_module:untyped"]}, "x has no type"),
        ({"tools": ["own_module:now"]}, "two tools are called 'now'"),
        ({"tools": ["own_module:something"]}, "is neither a function nor a tool"),
        ({"tools": ["own_module"]}, "extensions.tools.0"),
        ({"widgets": ["own_module:NotAWidget"]}, "it has no description, tools"),
        ({"token_counter": "own_module:counts_badly"}, "does not give whole numbers"),
        ({"on_compression": "own_module:not_async"}, "is not an async function"),
        ({"tool_executor": "own_module:not_async"}, "is not an async function of a tool"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_78(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extensions: dict[str, object], error_text: str
) -> None:
    (tmp_path / "own_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    config = tmp_path / "server.yaml"
    config.write_text(yaml.safe_dump({"extensions": extensions}))
    result = CliRunner().invoke(main, ["--config", str(config), "--check"])
    assert result.exit_code == 78
    assert error_text in result.output


def test_extensions_without_mistakes_are_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fine_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    config = tmp_path / "server.yaml"
    config.write_text(yaml.safe_dump({"extensions": {"tools": ["fine_module:works"]}}))
    result = CliRunner().invoke(main, ["--config", str(config), "--check"])
    assert result.exit_code == 0, result.output
