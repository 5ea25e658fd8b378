"""May the model run this tool? By its name in the settings, else by its class.

    allow   offered and run
    ask     offered; run once someone attached has said yes
    deny    not offered, and not run if it is called all the same

Who is asked is the business of `asking`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final, TypeAlias, assert_never

from nplt_server.tools.base import ToolClass, ToolDescription, ToolPolicy

ToolPolicies: TypeAlias = Mapping[str, ToolPolicy]

BY_CLASS: Final[Mapping[ToolClass, ToolPolicy]] = MappingProxyType(
    {"read": "allow", "write": "ask", "network": "ask"}
)
# Comparing takes time that grows with the square of it, and models can write much.
_NAME_CHARACTERS_MAX: Final = 200

NO_POLICIES: Final[ToolPolicies] = MappingProxyType({})


class SettingsPolicies(Mapping[str, ToolPolicy]):
    """What the settings say: of single tools by name, of all of an MCP server's."""

    def __init__(
        self, by_name: Mapping[str, ToolPolicy], by_server: Mapping[str, ToolPolicy]
    ) -> None:
        self._by_name = by_name
        self._by_server = by_server

    def __getitem__(self, name: str) -> ToolPolicy:
        if name in self._by_name:
            return self._by_name[name]
        server, mark, _ = name.partition("__")
        return self._by_server[server if mark else ""]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


def policy_of(tool: ToolDescription, policies: ToolPolicies) -> ToolPolicy:
    return policies.get(tool.name, BY_CLASS[tool.tool_class])


def refusal(tool: ToolDescription, policies: ToolPolicies) -> str | None:
    """Why it is never run; `None` if it may be."""
    match policy_of(tool, policies):
        case "allow" | "ask":
            return None
        case "deny":
            return f"not run: {tool.name} is denied by the server's settings"
        case unreachable:
            assert_never(unreachable)


def unknown_tools(policies: ToolPolicies, names: Collection[str]) -> list[str]:
    """A sentence for each name in the settings that no tool has."""
    return [
        f"tools: there is no tool {name!r}{did_you_mean(name, names)}"
        for name in policies
        if name not in names
    ]


def did_you_mean(name: str, names: Collection[str]) -> str:
    near = get_close_matches(name[:_NAME_CHARACTERS_MAX], names, n=1)
    return f"; did you mean {near[0]}?" if near else ""
