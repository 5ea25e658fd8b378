"""The settings of the server, as pydantic models.

`config/server.yaml` shows every setting at its default. Unknown keys are mistakes.
Reading files and environment variables is the job of `settings_loader`.

No `from __future__ import annotations` here: pydantic would compile each annotation again, a
fifth of the time this takes a start.
"""

import ipaddress
import os
import pwd
import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

from nplt_server.errors import ConfigurationError

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
HomePath = Annotated[Path, AfterValidator(Path.expanduser)]
PythonName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""`package.module:name`."""
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]


def user_dir(kind: Literal["config", "data", "state"]) -> Path:
    """Where this user's files of that kind are."""
    if sys.platform == "linux":  # as platformdirs does it, which is slow to load
        usual = {"config": "~/.config", "data": "~/.local/share", "state": "~/.local/state"}[kind]
        named = Path(os.environ.get(f"XDG_{kind.upper()}_HOME", ""))
        return (named if named.is_absolute() else Path(usual).expanduser()) / "nplt"
    import platformdirs

    return Path(getattr(platformdirs, f"user_{kind}_dir")("nplt", appauthor=False))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_named(name: str, setting: str) -> object:
    """What `module:name` stands for. Whatever goes wrong when the module is imported is a
    `ConfigurationError` that names the setting."""
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module_name), attribute)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigurationError([f"{setting}: {name!r} can't be loaded: {why}"]) from None


@cache
def known_vendors() -> dict[str, Any]:
    """What `vendors.toml` says of vendors and models. Read when it is first needed: a server
    without a vendor does without."""
    import tomllib

    return tomllib.loads(Path(__file__).with_name("vendors.toml").read_text(encoding="utf-8"))


def vendor_named(name: str) -> dict[str, Any]:
    """The vendor's part of the table; nothing if it has none."""
    found: dict[str, Any] = known_vendors()["vendors"].get(name, {})
    return found


class Part(BaseModel):
    # A mistake is told by its place and never by its value, which may be a secret. Parts
    # are built with the whole they belong to: each for itself would be twice the time.
    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True
    )


# ------------------------------------------------------------------------------
# Providers
#
# A key is never part of the settings: they name its variable or file, and `providers.credentials`
# reads it.

_KEY_WORDS = {"apikey", "auth", "authorization", "cookie", "key", "secret", "token"}
"""In the name of a header, between its dashes."""
# As text: few settings need them, and compiling takes a start a few milliseconds.
_BEGINS_LIKE_A_KEY = r"(?i)(bearer|basic) .+|(sk|gsk|xai|hf|nvapi|aiza)[-_]?[a-z0-9_-]{12,}"
_MIXED_LIKE_A_KEY = r"(?=.{24})(?=.*[0-9])(?=.*[a-z])[A-Za-z0-9]+"
"""As nobody calls a variable or a file."""
_HEADER_NAME = r"[A-Za-z0-9-]{1,64}"
_WHERE_KEYS_BELONG = (
    "a key is not written here: say api_key_env (a variable that holds it) "
    "or api_key_file (a file that only you can read)"
)


def checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ValueError("expected an address with a host, and a number for its port") from None
    if parts.scheme not in ("http", "https") or not has_host:
        raise ValueError("expected an address that begins with http:// or https://")
    if parts.username or parts.password:
        raise ValueError(_WHERE_KEYS_BELONG)
    if "?" in url or "#" in url:
        # Paths are put behind it; and what stands there is a key, more often than not.
        raise ValueError(f"expected an address that ends with its path; {_WHERE_KEYS_BELONG}")
    return url


def _checked_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if _KEY_WORDS & set(name.lower().split("-")) or re.fullmatch(_BEGINS_LIKE_A_KEY, value):
            raise ValueError(_WHERE_KEYS_BELONG)
        if not re.fullmatch(_HEADER_NAME, name) or not value.isascii() or not value.isprintable():
            raise ValueError("expected names and values that a header can have")
    return headers


def _no_key(name: str) -> str:
    """Of what is told where it is not found: by then it would be in a log."""
    if re.fullmatch(_BEGINS_LIKE_A_KEY, name) or re.fullmatch(_MIXED_LIKE_A_KEY, name):
        raise ValueError(f"that looks like the key itself: {_WHERE_KEYS_BELONG}")
    return name


Headers = Annotated[dict[str, str], AfterValidator(_checked_headers)]
BaseUrl = Annotated[str, AfterValidator(checked_url)]
ModelName = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,128}$")]
"""As the server knows it: `meta-llama/Llama-3.3-70B`, `llama3:8b`."""
VariableName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_no_key)
]


TokensField: TypeAlias = Literal["max_completion_tokens", "max_tokens"]


class OfflineSettings(Part):
    id: Name = "offline"
    type: Literal["offline"] = "offline"
    words_per_second: Annotated[float, Field(ge=0)] = 30.0


class PythonSettings(Part):
    """A model that is a Python function: `function` names it, as package.module:name."""

    id: Name
    type: Literal["python"]
    function: PythonName
    models: Annotated[tuple[Name, ...], Field(min_length=1)] = ("model",)


class LocalSettings(Part):
    """A small model on this machine."""

    id: Name = "local"
    type: Literal["local"] = "local"


class _VendorSettings(Part):
    api_key_env: VariableName | None = None
    api_key_file: (
        Annotated[HomePath, AfterValidator(lambda path: Path(_no_key(str(path))))] | None
    ) = None
    base_url: BaseUrl | None = None
    headers: Headers = Field(default_factory=dict)
    models: tuple[ModelName, ...] = ()
    """None: those we know the vendor to have."""

    @model_validator(mode="before")
    @classmethod
    def _keeps_no_key(cls, given: Any) -> Any:
        if isinstance(given, dict) and {"api_key", "key"} & given.keys():
            raise ValueError(_WHERE_KEYS_BELONG)
        return given

    @model_validator(mode="after")
    def _says_what_it_must(self) -> "_VendorSettings":
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("needs either api_key_env or api_key_file, not both")
        return self


_PRESET_FIELDS = ("base_url", "api", "tokens_field", "returns_reasoning", "cache_key")


class OpenAISettings(_VendorSettings):
    """OpenAI, or any server that speaks as OpenAI does. The type of a known vendor fills in
    what is not given."""

    id: Name = "openai"
    type: Name = "openai"
    api: Literal["chat", "responses"] | None = None
    """None: responses at OpenAI itself and for models that need it, chat everywhere else;
    learned from refusals."""
    tokens_field: TokensField = "max_completion_tokens"
    """Chat: older servers overlook the one, OpenAI's reasoning models refuse the other."""
    returns_reasoning: bool | None = None
    """Chat: DeepSeek wants to see its reasoning again, OpenAI refuses the field. None: models
    that are called deepseek… do, and others that say so in a refusal."""
    cache_key: bool | None = None
    """Whether requests have a `prompt_cache_key`. None: at OpenAI itself."""
    summarizes_reasoning: bool = False
    """Responses: OpenAI refuses it to organisations that have not shown who they are."""

    @model_validator(mode="before")
    @classmethod
    def _fills_in(cls, given: Any) -> Any:
        name = given.get("type", "openai") if isinstance(given, dict) else "openai"
        if name == "openai":
            return given
        vendor = vendor_named(name)
        if "base_url" not in given and "base_url" not in vendor:
            raise ValueError(f"needs base_url: {vendor['example']}")
        known = {"id": name} | {field: vendor[field] for field in _PRESET_FIELDS if field in vendor}
        # What is for the vendor is not for everybody.
        is_there = "base_url" not in given or "base_url" not in vendor
        if is_there and "key" in vendor and "api_key_file" not in given:
            known["api_key_env"] = vendor["key"]
        return known | given


class AnthropicSettings(_VendorSettings):
    id: Name = "anthropic"
    type: Literal["anthropic"] = "anthropic"


VendorSettings: TypeAlias = OpenAISettings | AnthropicSettings
AnyProviderSettings: TypeAlias = OfflineSettings | PythonSettings | LocalSettings | VendorSettings


def _kind_of(given: Any) -> str | None:
    """Every vendor of the table that has no class of its own speaks as OpenAI does."""
    told = given.get("type") if isinstance(given, dict) else getattr(given, "type", None)
    if not isinstance(told, str) or told in PROVIDER_KINDS:
        return told if isinstance(told, str) else None
    return "openai" if vendor_named(told) else told


ProviderSettings = Annotated[
    Annotated[OfflineSettings, Tag("offline")]
    | Annotated[PythonSettings, Tag("python")]
    | Annotated[LocalSettings, Tag("local")]
    | Annotated[OpenAISettings, Tag("openai")]
    | Annotated[AnthropicSettings, Tag("anthropic")],
    Discriminator(_kind_of),
]
USUAL_LOCAL_SERVERS = {"ollama": 11434, "llamacpp": 8080, "lmstudio": 1234}
"""Sources: docs.ollama.com/faq; tools/server/README.md of github.com/ggml-org/llama.cpp;
lmstudio.ai/docs/developer/core/server."""
PROVIDER_KINDS: dict[str, type[Part]] = {
    "offline": OfflineSettings,
    "python": PythonSettings,
    "local": LocalSettings,
    "openai": OpenAISettings,
    "anthropic": AnthropicSettings,
}


class Tls(Part):
    cert: HomePath
    key: HomePath


class Listen(Part):
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 9999
    tls: Tls | None = None
    unix: HomePath | None = None
    """A Unix socket to listen on as well."""
    local_users: Literal["owner", "any"] | tuple[str, ...] | None = None
    """Who of this machine may connect. Not set: the owner where there are no tokens."""

    @field_validator("local_users", mode="before")
    @classmethod
    def _owner_any_or_names(cls, value: object) -> object:
        if isinstance(value, str) and value not in ("owner", "any"):
            raise ValueError(f"owner, any, or a list of names: [{value}]")
        return value


class ModelSettings(Part):
    """What is known of one model; prices are US dollars per million tokens."""

    context_tokens: Annotated[int, Field(ge=2_048)] | None = None
    output_tokens: PositiveInt | None = None
    price_in: Annotated[float, Field(ge=0)] | None = None
    price_out: Annotated[float, Field(ge=0)] | None = None
    price_cached: Annotated[float, Field(ge=0)] | None = None
    """Of input that came from the provider's cache."""
    price_cache_write: Annotated[float, Field(ge=0)] | None = None
    """Of input that was written to it."""
    images: bool | None = None
    """Whether it can be shown pictures."""
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """For prompts that say none; so is `temperature`."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Fields that are put into every request, as they are."""


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
    seconds_max: PositiveFloat | None = None
    """For an answer, or for the next sign of progress; `limits.tool_seconds_max` if unset."""

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "McpServerSettings":
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either command or url")
        return self


class ExtensionSettings(Part):
    """The operator's own Python; `nplt_server.extensions` loads and checks it."""

    tools: tuple[PythonName, ...] = ()
    widgets: tuple[PythonName, ...] = ()
    token_counter: PythonName | None = None
    on_compression: PythonName | None = None


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
    backend: BackendSettings = BackendSettings.model_construct()
    system_message: str | None = None


class SessionSettings(Part):
    """How conversations are found and made for clients that do not say so themselves."""

    create: bool = False
    """Whether a conversation that is named and not there is made."""
    default: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")] = (
        "default"
    )
    """The conversation of those who name none, where conversations are made."""


class ClusterSettings(Part):
    """Several servers over one Redis."""

    advertise: Annotated[str, StringConstraints(pattern=r"^\S+:\d{1,5}$")] | None = None
    """host:port at which the others reach this server."""
    secret_file: HomePath | None = None
    """Holds what all servers of the cluster know: then they relay to each other."""
    ca_file: HomePath | None = None
    """Who signed the certificates of the others, if the system does not know them."""


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
    operator: bool = False
    """Is told the figures of the whole server (STATUS), not only their own."""


class Limits(Part):
    frame_bytes_before_token_max: PositiveInt = 4_096
    message_bytes_max: Annotated[int, Field(ge=65_536)] = 1024 * 1024
    unfinished_bytes_per_user_max: Annotated[int, Field(ge=1024 * 1024)] = 32 * 1024 * 1024
    unfinished_bytes_max: Annotated[int, Field(ge=1024 * 1024)] = 128 * 1024 * 1024
    answer_bytes_max: PositiveInt = 8 * 1024 * 1024
    file_bytes_max: PositiveInt = 64 * 1024 * 1024
    upload_bytes_per_user_max: PositiveInt = 256 * 1024 * 1024
    upload_seconds_max: PositiveFloat = 600.0
    file_bytes_per_user_max: PositiveInt = 2 * 1024**3
    conversation_bytes_per_user_max: PositiveInt = 2 * 1024**3
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
    search_seconds_max: PositiveFloat = 5.0
    drain_seconds_max: Annotated[float, Field(ge=0)] = 8.0


class Settings(Part):
    listen: Listen = Listen.model_construct()
    data_dir: HomePath = Field(default_factory=lambda: user_dir("data"))
    default_model: str | None = None
    providers: tuple[ProviderSettings, ...] = ()
    """None: whoever the environment has a key for, the local model, offline/echo."""
    local_servers: dict[Name, Annotated[int, Field(ge=1, le=65_535)]] | None = None
    """Servers that are looked for on this machine, each by its port. None: the usual ones, if
    no provider is listed; the loader puts them in."""
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    roles: RoleSettings = RoleSettings.model_construct()
    fallback: tuple[str, ...] = ()
    context: ContextSettings = ContextSettings.model_construct()
    tools: dict[str, ToolPolicy] = Field(default_factory=dict)
    approvals: ApprovalSettings = ApprovalSettings.model_construct()
    tool_roots: tuple[HomePath, ...] = ()
    mcp_servers: dict[Name, McpServerSettings] = Field(default_factory=dict)
    extensions: ExtensionSettings = ExtensionSettings.model_construct()
    histories: tuple[HistorySettings, ...] = (HistorySettings.model_construct(id="main"),)
    graph: GraphSettings | None = None
    cluster: ClusterSettings = ClusterSettings.model_construct()
    sessions: SessionSettings = SessionSettings.model_construct()
    users: tuple[UserSettings, ...] = ()
    limits: Limits = Limits.model_construct()
    insecure: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @model_validator(mode="after")
    def _read_older_form(self) -> "Settings":
        """`graph.history` describes the only history, unless `histories` is there."""
        older = self.graph.history if self.graph else None
        if older is None or not older.enabled or "histories" in self.model_fields_set:
            return self
        backend = BackendSettings.model_validate(
            {"max_turns": older.max_turns} if older.max_turns else {}
        )
        only = HistorySettings(id="main", backend=backend, system_message=older.system_message)
        return self.model_copy(update={"histories": (only,), "graph": None})

    @property
    def local_users(self) -> Literal["owner", "any"] | tuple[str, ...]:
        """Which users of this machine may connect, besides root. Tokens say who is who."""
        return self.listen.local_users or ("any" if self.users else "owner")

    @property
    def free_bytes_min(self) -> int | None:
        """Of the first history kept in files, whose disk the uploads are on."""
        kept = (each.backend.options for each in self.histories if each.backend.type == "json")
        told = next(kept, {}).get("free_bytes_min")
        return told if isinstance(told, int) else None

    @property
    def is_private(self) -> bool:
        """Only those who may can connect, and nobody can listen in."""
        return is_loopback(self.listen.host) or bool(self.users and self.listen.tls)

    def mistakes(self) -> list[str]:
        """What is wrong although every value by itself is fine."""
        found: list[str] = []
        for kind, names in (
            ("providers", [provider.id for provider in self.providers]),
            ("users", [user.name for user in self.users]),
            ("histories", [history.id for history in self.histories]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            found += [f"two {kind} are called {name!r}" for name in twice]
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
        if not isinstance(self.local_users, str):
            known = {entry.pw_name for entry in pwd.getpwall()}
            found += [
                f"listen.local_users: there is no user {name!r} on this machine"
                for name in self.local_users
                if name not in known
            ]
        if self.cluster.secret_file is not None and self.cluster.advertise is None:
            found.append("cluster.secret_file needs cluster.advertise: the others must find this")
        if not self.is_private and not self.insecure:
            found.append(
                f"listening on {self.listen.host} needs users with tokens and tls, "
                "or --insecure if you really mean it"
            )
        return found
