"""What an operator can set. The sample in `config/server.yaml` shows it all.

Values only; where they come from is `settings_sources`. Unknown keys are
mistakes, not decoration.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import ConfigDict, Field, StringConstraints, model_validator

from nplt_server.provider_settings import ProviderSettings
from nplt_server.settings_parts import HomePath, Name, Part, PositiveFloat, PositiveInt


class Tls(Part):
    cert: HomePath
    key: HomePath


class Listen(Part):
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 9999
    tls: Tls | None = None

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class ModelSettings(Part):
    """What is known of one model; prices are US dollars per million tokens."""

    context_tokens: Annotated[int, Field(ge=2_048)] | None = None
    output_tokens: PositiveInt | None = None
    price_in: Annotated[float, Field(ge=0)] | None = None
    price_out: Annotated[float, Field(ge=0)] | None = None
    price_cached: Annotated[float, Field(ge=0)] | None = None
    images: bool | None = None
    """Whether it can be shown pictures."""


class RoleSettings(Part):
    """Which model plays which part."""

    planner: str | None = None
    executor: str | None = None
    reviewer: str | None = None
    summarizer: str | None = None


class ContextSettings(Part):
    policy: Literal["epochs", "newest_live"] = "epochs"
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.85
    """A new epoch begins before the next context takes more of the budget than this."""
    keep: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """What a new epoch's context takes of the budget at most."""


ToolPolicy = Literal["allow", "ask", "deny"]


class ApprovalSettings(Part):
    wait_when_alone: bool = False
    """Whether a tool that must be asked about waits for someone to come, where nobody
    is there who could answer; if not, it is denied at once."""


class McpServerSettings(Part):
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    url: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    headers: dict[str, str] = Field(default_factory=dict)
    cwd: HomePath | None = None
    policy: ToolPolicy = "ask"
    """For all its tools; `tools` may say otherwise for one."""

    @model_validator(mode="after")
    def _is_one_of_two(self) -> McpServerSettings:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either command or url")
        return self


class BackendSettings(Part):
    """Where a history is kept. What else stands here depends on the type, and is
    checked by whoever opens it: `nplt_storage.opening`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str = "json"

    @property
    def options(self) -> dict[str, object]:
        return dict(self.model_extra or {})

    @property
    def turns_max(self) -> int | None:
        turns = self.options.get("max_turns")
        return turns if isinstance(turns, int) and not isinstance(turns, bool) else None


class HistorySettings(Part):
    id: Name
    backend: BackendSettings = BackendSettings()
    system_message: str | None = None


class GraphHistorySettings(Part):
    """The older way to describe one history; its keys into a graph say nothing here."""

    enabled: bool = True
    input_key: str | None = None
    output_key: str | None = None
    max_turns: PositiveInt | None = None
    system_message: str | None = None


class GraphSettings(Part):
    model_config = ConfigDict(frozen=True, extra="ignore")

    history: GraphHistorySettings | None = None


class UserSettings(Part):
    name: Name
    token_sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$")]


class Limits(Part):
    frame_bytes_before_token_max: PositiveInt = 4_096
    message_bytes_max: Annotated[int, Field(ge=65_536)] = 1024 * 1024
    answer_bytes_max: PositiveInt = 8 * 1024 * 1024
    file_bytes_max: PositiveInt = 64 * 1024 * 1024
    json_depth_max: PositiveInt = 32
    json_keys_max: PositiveInt = 1_000
    message_seconds_max: PositiveFloat = 10.0
    hello_seconds_max: PositiveFloat = 5.0
    write_seconds_max: PositiveFloat = 10.0
    event_bytes_max: PositiveInt = 512 * 1024
    connections_max: PositiveInt = 1_000
    connections_per_address_max: PositiveInt = 50
    connections_per_user_max: PositiveInt = 256
    plain_heartbeat_seconds: PositiveFloat = 90.0
    plain_silence_seconds_max: PositiveFloat = 180.0
    frames_per_second_max: PositiveFloat = 200.0
    prompts_per_minute_max: PositiveFloat = 30.0
    waiting_prompts_max: PositiveInt = 16
    turns_per_user_max: PositiveInt = 8
    turns_max: PositiveInt = 64
    call_seconds_max: PositiveFloat = 300.0
    connect_seconds_max: PositiveFloat = 5.0
    first_token_seconds_max: PositiveFloat = 120.0
    gap_seconds_max: PositiveFloat = 60.0
    retries_max: Annotated[int, Field(ge=0, le=10)] = 2
    turn_seconds_max: PositiveFloat = 1_800.0
    summary_seconds_max: PositiveFloat = 60.0
    tool_seconds_max: PositiveFloat = 30.0
    approval_seconds_max: PositiveFloat = 300.0
    tool_result_bytes_max: Annotated[int, Field(ge=1_024)] = 32 * 1024
    tools_at_once_max: PositiveInt = 4
    tool_calls_per_step_max: PositiveInt = 8
    steps_max: PositiveInt = 10
    drain_seconds_max: Annotated[float, Field(ge=0)] = 8.0


class Settings(Part):
    listen: Listen = Listen()
    data_dir: HomePath = Field(default_factory=lambda: Path(platformdirs.user_data_dir("nplt")))
    default_model: str | None = None
    providers: tuple[ProviderSettings, ...] = ()
    """None: whoever the environment has a key for, the local model, offline/echo."""
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    roles: RoleSettings = RoleSettings()
    fallback: tuple[str, ...] = ()
    context: ContextSettings = ContextSettings()
    tools: dict[str, ToolPolicy] = Field(default_factory=dict)
    approvals: ApprovalSettings = ApprovalSettings()
    tool_roots: tuple[HomePath, ...] = ()
    mcp_servers: dict[Name, McpServerSettings] = Field(default_factory=dict)
    histories: tuple[HistorySettings, ...] = (HistorySettings(id="main"),)
    graph: GraphSettings | None = None
    users: tuple[UserSettings, ...] = ()
    limits: Limits = Limits()
    insecure: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @model_validator(mode="after")
    def _read_older_form(self) -> Settings:
        """`graph.history` describes the only history, unless `histories` is there."""
        older = self.graph.history if self.graph else None
        if older is None or not older.enabled or "histories" in self.model_fields_set:
            return self
        backend = BackendSettings.model_validate(
            {"max_turns": older.max_turns} if older.max_turns else {}
        )
        only = HistorySettings(id="main", backend=backend, system_message=older.system_message)
        return self.model_copy(update={"histories": (only,), "graph": None})

    def mistakes(self) -> list[str]:
        """What is wrong although every value by itself is fine."""
        found: list[str] = []
        ids = [provider.id for provider in self.providers]
        found += [
            f"two providers are called {id_!r}" for id_ in sorted({*ids}) if ids.count(id_) > 1
        ]
        names = [user.name for user in self.users]
        found += [f"two users are called {n!r}" for n in sorted({*names}) if names.count(n) > 1]
        ids = [history.id for history in self.histories]
        found += [
            f"two histories are called {id_!r}" for id_ in sorted({*ids}) if ids.count(id_) > 1
        ]
        data_dir = self.data_dir.resolve()
        for root in (root.resolve() for root in self.tool_roots):
            if not root.is_dir():
                found.append(f"tool_roots: there is no directory {root}")
            elif root.is_relative_to(data_dir) or data_dir.is_relative_to(root):
                found.append(
                    f"tool_roots: {root} and the data directory are one inside the other: "
                    "tools could read everybody's conversations"
                )
        found += [
            f"models.{name}: output_tokens leaves no room for a prompt in context_tokens"
            for name, model in self.models.items()
            if (model.output_tokens or 0) * 2 > (model.context_tokens or 128_000)
        ]
        if self.context.keep >= self.context.threshold:
            found.append("context.keep must be smaller than context.threshold")
        if not self.histories:
            found.append("histories is empty: nothing could be remembered")
        is_private = self.listen.is_loopback or (self.users and self.listen.tls)
        if not is_private and not self.insecure:
            found.append(
                f"listening on {self.listen.host} needs users with tokens and tls, "
                "or --insecure if you really mean it"
            )
        return found
