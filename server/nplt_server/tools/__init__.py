"""The tool port: what a tool is, what is offered to a model, and whether it may run.

A tool is a name, a schema and a function. Policies come from the settings by name, else
by the tool's class. `ToolTurn` is what the runner needs of the turn whose tool calls it runs.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import Final, Literal, Protocol, TypeAlias

import orjson
from msgspec import Struct

from nplt_protocol import JsonObject
from nplt_storage.entries import ToolCallRequest, ToolCallResult
from nplt_storage.search import SearchHit

ToolClass: TypeAlias = Literal["read", "write", "network"]
"""The worst that a tool does outside of its own conversation. A tool that changes only the
conversation (its notebook, say) is one that reads."""

ToolPolicy: TypeAlias = Literal["allow", "ask", "deny"]
"""A tool with `allow` is offered and run; one with `ask` is offered, and run when somebody who is
attached has approved it; one with `deny` is neither offered nor run."""


class ToolDescription(Struct, frozen=True, kw_only=True):
    name: str
    description: str
    parameters: JsonObject
    """JSON Schema of the arguments."""
    tool_class: ToolClass = "read"


class ToolHost(Protocol):
    """The conversation a tool runs in, as far as a tool may see and change it: all that a running
    tool may ask for."""

    @property
    def session_id(self) -> str: ...

    @property
    def user(self) -> str: ...

    @property
    def turn_id(self) -> str: ...

    @property
    def notebook(self) -> str: ...

    async def update_notebook(self, change: Callable[[str], str]) -> str:
        """Reads, changes and records as one step; gives the new text. `change` may
        raise `ToolFailed`, and then nothing is changed."""
        ...

    def widget_state(self, name: str) -> JsonObject:
        """The state of a widget; empty if it has none yet."""
        ...

    async def update_widget(
        self, name: str, change: Callable[[JsonObject], JsonObject]
    ) -> JsonObject:
        """Like `update_notebook`, for any other widget."""
        ...

    def find_result(self, tool_call_id: str) -> ToolCallResult | None:
        """The result of a tool call of this conversation, if it is in memory."""
        ...

    async def read_blob(self, blob_id: str, offset: int, length: int) -> bytes:
        """A part of what is stored next to the record; offset and length in bytes."""
        ...

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        """Searches all conversations of this user. Messages that hold all words come first, then
        those that hold some; among them those of this conversation, then the best."""
        ...

    async def messages_around(self, session_id: str, seq: int, limit: int) -> Sequence[JsonObject]:
        """The messages around one of a conversation of this user, in order. Raises `ToolFailed`
        if there is no such conversation."""
        ...

    async def keep_file(self, filename: str, content_type: str, data: bytes) -> str:
        """Stores a file as an attachment of this conversation; gives its id."""
        ...


class ToolTurn(Protocol):
    """The turn whose tool calls are run: it hears of each one, and decides whether it may run."""

    @property
    def tool_host(self) -> ToolHost:
        """The conversation as the tools see it."""
        ...

    def tool_started(self, tool_call: ToolCallRequest) -> None: ...

    def tool_finished(self, result: ToolCallResult) -> None: ...

    async def ask(self, tool_call: ToolCallRequest) -> str | None:
        """Asks whether a tool with policy `ask` may run. Gives the reason why it may not, in a
        sentence for the model, or `None`. The wait does not count as the tool's time."""
        ...

    def why_denied(self, tool_name: str) -> str | None:
        """Why the prompt does not want the tool to run; `None` if it may."""
        ...

    async def why_not_now(self) -> str | None:
        """Called right before a tool runs: the reason why it must not, or `None`."""
        ...

    def why_stopped(self) -> str:
        """The reason why the turn was cancelled, for the results of what was cut short."""
        ...


class ResultWithPictures(str):
    """The text of a result, and the ids of the files with its pictures: the host has kept
    them, and models that see are shown them."""

    attachments: tuple[str, ...] = ()


def no_mistake(_arguments: JsonObject) -> str | None:
    return None


class Tool(Struct, frozen=True, kw_only=True):
    description: ToolDescription
    run: Callable[[JsonObject, ToolHost], Awaitable[str]]
    keeps_time: bool = False
    """It has a time limit of its own, which depends on the progress that it reports."""
    mistake_in: Callable[[JsonObject], str | None] = no_mistake
    """Returns what is wrong with arguments, in a sentence for the model, so that no approval is
    requested for a call that the tool would refuse; `None` if nothing is known to be wrong."""


ToolRunner: TypeAlias = Callable[[Tool, JsonObject, ToolHost], Awaitable[str]]
"""Runs one tool that may run; approvals, limits and masking are around it."""


async def run_tool(tool: Tool, arguments: JsonObject, host: ToolHost) -> str:
    return await tool.run(arguments, host)


class ToolFailed(Exception):
    """Raised by a tool with a sentence meant for the model. A tool may raise anything else too:
    the runner makes a result of it."""


RESULT_BYTES_MAX: Final = 16 * 1024 * 1024
"""The longest result of a tool, in UTF-8. Smaller limits say how much of it is stored in the
entry and shown to models."""


class ToolOffer(Struct, frozen=True, kw_only=True):
    descriptions: tuple[ToolDescription, ...] = ()
    digest: str = ""
    texts: tuple[str, ...] = ()
    """The text of each description, by which its tokens are counted, whatever format it is sent
    in."""


def offer_of(descriptions: tuple[ToolDescription, ...]) -> ToolOffer:
    if not descriptions:
        return ToolOffer()
    texts = tuple(
        orjson.dumps(
            {"name": one.name, "description": one.description, "parameters": one.parameters}
        ).decode()
        for one in descriptions
    )
    digest = sha256("\n".join(texts).encode()).hexdigest()[:16]
    return ToolOffer(descriptions=descriptions, digest=digest, texts=texts)


_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_DIGITS: Final = 8


def name_fits(name: str, characters_max: int) -> bool:
    """Whether every vendor takes it: letters, digits, `_` and `-`."""
    return 0 < len(name) <= characters_max and _NOT_IN_A_NAME.search(name) is None


def fitting_name(name: str, characters_max: int) -> str:
    """The name itself if it fits; else its legible part, and digits of a digest of all of it."""
    if name_fits(name, characters_max):
        return name
    stem = _NOT_IN_A_NAME.sub("_", name[: characters_max - _DIGITS - 1]) or "tool"
    return f"{stem}-{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:_DIGITS]}"


ToolPolicies: TypeAlias = Mapping[str, ToolPolicy]
"""The policies in the settings, by the name of a tool, by `server__` for all tools of an MCP
server, or by `*` for all others."""
ALL_TOOLS: Final = "*"

BY_CLASS: Final[Mapping[ToolClass, ToolPolicy]] = MappingProxyType(
    {"read": "allow", "write": "ask", "network": "ask"}
)
"""The policies of tools that the settings do not name."""
_NAME_CHARACTERS_MAX: Final = 200
"""How much of a name is compared: that takes time that grows with the square of its length, and
models can write much."""

NO_POLICIES: Final[ToolPolicies] = MappingProxyType({})


def policy_of(tool: ToolDescription, policies: ToolPolicies) -> ToolPolicy:
    server, mark, _ = tool.name.partition("__")
    otherwise = policies.get(ALL_TOOLS, BY_CLASS[tool.tool_class])
    return policies.get(tool.name, policies.get(server + mark, otherwise))


def unknown_tools(policies: ToolPolicies, names: Collection[str]) -> list[str]:
    """A sentence for each name in the settings that no tool has."""
    return [
        f"tools: there is no tool {name!r}{did_you_mean(name, names)}"
        for name in policies
        if name not in names and name != ALL_TOOLS
    ]


def did_you_mean(name: str, names: Collection[str]) -> str:
    from difflib import get_close_matches  # slow to load, and not needed to start

    near = get_close_matches(name[:_NAME_CHARACTERS_MAX], names, n=1)
    return f"; did you mean {near[0]}?" if near else ""
