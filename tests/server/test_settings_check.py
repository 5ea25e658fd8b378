"""`nplt-server --check` knows every mistake that a start would stumble over."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from nplt_server.cli import main


@pytest.mark.parametrize(
    ("text", "error_text"),
    [
        ("roles: {summarizer: offline/eco}", "did you mean offline/echo?"),
        ("tools: {sys_monitr: deny}", "did you mean sys_monitor?"),
        ('mcp_servers: {wiki: {url: "ftp://a"}}', "mcp_servers.wiki"),
        ("mcp_servers: {wiki: {comand: [x]}}", "did you mean command?"),
        ("models: {offline/echo: {context_token: 5}}", "did you mean context_tokens?"),
        ('providers: [{id: p, type: python, function: "no.such:thing"}]', "can't be loaded"),
        ("context: {keep: 0.9}", "context.keep"),
    ],
)
def test_a_mistake_in_the_settings_is_printed_and_the_check_fails(
    tmp_path: Path, text: str, error_text: str
) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(text)
    result = CliRunner().invoke(main, ["--config", str(config), "--check"])
    assert result.exit_code == 78
    assert error_text in result.output
