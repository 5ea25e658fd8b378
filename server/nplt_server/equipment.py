"""What conversations think and work with, made from the settings: tools, MCP servers,
what is known of models.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from nplt_server.conversations.thinking import ContextRules, Thinking
from nplt_server.errors import ConfigurationError
from nplt_server.providers.knowing import facts_of_models
from nplt_server.providers.router import ProviderRouter
from nplt_server.settings import McpServerSettings, Settings
from nplt_server.tools.base import Tool, ToolPolicy
from nplt_server.tools.builtin import builtin_tools
from nplt_server.tools.mcp.config import McpServerConfig
from nplt_server.tools.mcp.servers import McpServers
from nplt_server.tools.policy import SettingsPolicies, unknown_tools
from nplt_server.tools.runner import ToolRunner

log = logging.getLogger(__name__)

_ALLOWED: dict[str, ToolPolicy] = {"notebook": "allow", "todo": "allow"}
"""They change nothing but their own conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    thinking: Thinking
    runner: ToolRunner
    mcp_servers: McpServers


class _AllTools:
    """Our own first: a provider's cache begins with the tools, and ours never change.
    They are made when somebody first looks: a server that starts has other things to do."""

    def __init__(self, make: Callable[[], tuple[Tool, ...]], servers: McpServers) -> None:
        self._make = make
        self._own: tuple[Tool, ...] | None = None
        self._servers = servers

    def __iter__(self) -> Iterator[Tool]:
        yield from self.own
        yield from self._servers.tools

    @property
    def own(self) -> tuple[Tool, ...]:
        if self._own is None:
            self._own = self._make()
        return self._own


def equip(settings: Settings, router: ProviderRouter, clock: Callable[[], datetime]) -> Equipment:
    thinking = Thinking(
        models=facts_of_models(settings),
        rules=ContextRules(
            policy=settings.context.policy,
            threshold=settings.context.threshold,
            keep=settings.context.keep,
        ),
        summarizer=settings.roles.summarizer,
        namer=settings.roles.summarizer,
        summary_seconds_max=settings.limits.summary_seconds_max,
    )
    for name in settings.models:
        if name not in router.models:
            log.warning("models: %s is not among the models there are", name)
    servers = McpServers(_configs(settings))

    def make_own() -> tuple[Tool, ...]:
        builtin = builtin_tools(clock, settings.tool_roots, never=[settings.data_dir])
        return (*builtin, *(tool for widget in thinking.widgets for tool in widget.tools))

    tools = _AllTools(make_own, servers)
    _check_names(settings, tools)
    runner = ToolRunner(
        tools,
        clock=clock,
        policies=SettingsPolicies(
            _ALLOWED | settings.tools,
            {name: server.policy for name, server in settings.mcp_servers.items()},
        ),
        seconds_max=settings.limits.tool_seconds_max,
        at_once_max=settings.limits.tools_at_once_max,
        calls_max=settings.limits.tool_calls_per_step_max,
    )
    return Equipment(thinking=thinking, runner=runner, mcp_servers=servers)


def _configs(settings: Settings) -> list[McpServerConfig]:
    mistakes: list[str] = []
    configs: list[McpServerConfig] = []
    for name, server in settings.mcp_servers.items():
        try:
            configs.append(_config(name, server))
        except ValueError as error:
            mistakes.append(f"mcp_servers.{name}: {error}")
    if mistakes:
        raise ConfigurationError(mistakes)
    return configs


def _config(name: str, server: McpServerSettings) -> McpServerConfig:
    return McpServerConfig(
        name=name,
        command=server.command,
        url=server.url,
        env=server.env,
        headers=server.headers,
        cwd=str(server.cwd) if server.cwd is not None else None,
    )


def _check_names(settings: Settings, tools: _AllTools) -> None:
    """Tools of MCP servers are known only once those have been met."""
    named = [name for name in settings.tools if name.partition("__")[0] not in settings.mcp_servers]
    if not named:
        return
    known = [tool.description.name for tool in tools.own] + ["read_file", "list_files"]
    if mistakes := unknown_tools({name: settings.tools[name] for name in named}, known):
        raise ConfigurationError(mistakes)
