"""The settings of the server, as pydantic models.

`config/server.yaml` shows every setting at its default. Unknown keys are mistakes.
Reading files and environment variables is the job of `settings_loader`.

There is no `from __future__ import annotations` here, because pydantic would compile each
annotation again, which takes a fifth of the time that this module adds to a start.
"""

import ipaddress
import os
import pwd
import re
import sys
from functools import cache
from importlib import import_module
from ipaddress import ip_network
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
from nplt_server.request_form import TokensField

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
HomePath = Annotated[Path, AfterValidator(Path.expanduser)]
PythonName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""The name of an object, as `package.module:name`."""
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]


def user_dir(kind: Literal["config", "data", "state"]) -> Path:
    """Returns the directory of this user's files of that kind."""
    if sys.platform == "linux":  # the rule of platformdirs, which is slow to import
        usual = {"config": "~/.config", "data": "~/.local/share", "state": "~/.local/state"}[kind]
        named = Path(os.environ.get(f"XDG_{kind.upper()}_HOME", ""))
        return (named if named.is_absolute() else Path(usual).expanduser()) / "nplt"
    import platformdirs

    return Path(getattr(platformdirs, f"user_{kind}_dir")("nplt", appauthor=False))


def is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def load_named(name: str, setting: str) -> object:
    """Returns the object named `module:name`. Any failure of the import becomes a
    `ConfigurationError` that names the setting."""
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module_name), attribute)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigurationError([f"{setting}: {name!r} can't be loaded: {why}"]) from None


@cache
def known_vendors() -> dict[str, Any]:
    """Returns the table of vendors and models, `vendors.toml`. It is read on first use: a server
    without a vendor does not need it."""
    import tomllib

    return tomllib.loads(Path(__file__).with_name("vendors.toml").read_text(encoding="utf-8"))


def vendor_named(name: str) -> dict[str, Any]:
    """Returns the vendor's part of the table, empty if there is none."""
    found: dict[str, Any] = known_vendors()["vendors"].get(name, {})
    return found


class Part(BaseModel):
    # Errors name the place of a mistake and never its value, which may be a secret. Parts are
    # built together with the model they belong to; one by one would take twice the time.
    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True
    )


# Providers: a key is never part of the settings. They name its variable or file, and
# `providers.credentials` reads it.

_KEY_WORDS = {"apikey", "auth", "authorization", "cookie", "key", "secret", "token"}
"""Words in the name of a header, between its dashes, that mark its value as a key."""
# The patterns are text, because few settings need them and compiling them takes milliseconds.
_BEGINS_LIKE_A_KEY = r"(?i)(bearer|basic) .+|(sk|gsk|xai|hf|nvapi|aiza)[-_]?[a-z0-9_-]{12,}"
_MIXED_LIKE_A_KEY = r"(?=.{24})(?=.*[0-9])(?=.*[a-z])[A-Za-z0-9]+"
"""A mixture of letters and digits that is no plausible name of a variable or a file."""
_CALLED_PATH = r"/(?:chat/completions|completions|responses|messages|models)/?$"
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
    if found := re.search(_CALLED_PATH, parts.path):
        raise ValueError(f"expected an address without {found[0].strip('/')}, which is added to it")
    if "?" in url or "#" in url:
        # Paths are appended to it; and a query is a key, more often than not.
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
    """Rejects a name that looks like a key. An error about a missing variable or file would log
    it."""
    if re.fullmatch(_BEGINS_LIKE_A_KEY, name) or re.fullmatch(_MIXED_LIKE_A_KEY, name):
        raise ValueError(f"that looks like the key itself: {_WHERE_KEYS_BELONG}")
    return name


Headers = Annotated[dict[str, str], AfterValidator(_checked_headers)]
BaseUrl = Annotated[str, AfterValidator(checked_url)]
ModelName = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,128}$")]
"""The vendor's own name of a model: `meta-llama/Llama-3.3-70B`, `llama3:8b`."""
VariableName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_no_key)
]


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
    """A model that runs on this machine: the small one that can be installed, or any GGUF file."""

    id: Name = "local"
    type: Literal["local"] = "local"
    path: HomePath | None = None
    """The model's GGUF file. None: the small model."""


class _VendorSettings(Part):
    api_key_env: VariableName | None = None
    api_key_file: (
        Annotated[HomePath, AfterValidator(lambda path: Path(_no_key(str(path))))] | None
    ) = None
    base_url: BaseUrl | None = None
    headers: Headers = Field(default_factory=dict)
    models: tuple[ModelName, ...] = ()
    """The models it offers. Empty: the ones that `vendors.toml` lists for the vendor."""
    on_limit: Literal["fail", "hold"] = "fail"
    """Whether a prompt that reaches the provider's rate limit is held until the limit ends, if the
    provider says when, or its turn fails."""

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
    """OpenAI, or any server with an OpenAI-compatible API. The type of a known vendor supplies
    the fields that are not given."""

    id: Name = "openai"
    type: Name = "openai"
    api: Literal["chat", "responses"] | None = None
    """The API to call. None: `responses` at OpenAI itself and for models that need it, `chat`
    everywhere else; refusals correct the choice."""
    tokens_field: TokensField | None = None
    """The field of the chat API that limits the output. Older servers ignore
    `max_completion_tokens`, OpenAI's reasoning models refuse `max_tokens`. None: the first, until
    it is refused."""
    returns_reasoning: bool | None = None
    """Whether requests of the chat API return the model's reasoning to it. DeepSeek requires it,
    OpenAI refuses the field. None: for models named deepseek…, and for those whose refusal asks
    for it."""
    cache_key: bool | None = None
    """Whether requests have a `prompt_cache_key`. None: only at OpenAI itself."""
    summarizes_reasoning: bool = False
    """Whether the responses API is asked for summaries of the reasoning. OpenAI refuses this to
    unverified organisations."""

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
        # A vendor's key must not be sent to another address.
        is_at_vendor = "base_url" not in given or "base_url" not in vendor
        if is_at_vendor and "key" in vendor and "api_key_file" not in given:
            known["api_key_env"] = vendor["key"]
        return known | given


class AnthropicSettings(_VendorSettings):
    id: Name = "anthropic"
    type: Literal["anthropic"] = "anthropic"


VendorSettings: TypeAlias = OpenAISettings | AnthropicSettings
AnyProviderSettings: TypeAlias = OfflineSettings | PythonSettings | LocalSettings | VendorSettings


def _kind_of(given: Any) -> str | None:
    """Maps a provider's type to its settings class. A vendor of the table without a class of its
    own has an OpenAI-compatible API."""
    name = given.get("type") if isinstance(given, dict) else getattr(given, "type", None)
    if not isinstance(name, str) or name in PROVIDER_KINDS:
        return name if isinstance(name, str) else None
    return "openai" if vendor_named(name) else name


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


def _network(text: str) -> str:
    try:
        return str(ip_network(text, strict=False))
    except ValueError:
        expected = "an address, such as 10.0.0.5, or a network, such as 10.0.0.0/24"
        raise ValueError(expected) from None


Network = Annotated[str, AfterValidator(_network)]
HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.:\[\]_-]{1,255}$", to_lower=True)]
Origin = Annotated[
    str, StringConstraints(pattern=r"^https?://[A-Za-z0-9.:\[\]_-]{1,255}$", to_lower=True)
]


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
    """The users of this machine who may connect. None: only the owner if there are no tokens,
    else all."""
    http: bool = True
    """Whether the server can be reached by HTTP as well, at a port of its own."""
    http_port: Annotated[int, Field(ge=0, le=65_535)] = 9998
    hosts: tuple[HostName, ...] = ()
    """The names by which HTTP clients may call this server, besides loopback names and `host`."""
    origins: tuple[Origin, ...] = ()
    """The web pages of other servers that may call this one from a browser."""
    proxies: tuple[Network, ...] = ()
    """The addresses of proxies, such as a load balancer, that name their clients' addresses."""

    @field_validator("local_users", mode="before")
    @classmethod
    def _owner_any_or_names(cls, value: object) -> object:
        if isinstance(value, str) and value not in ("owner", "any"):
            raise ValueError(f"owner, any, or a list of names: [{value}]")
        return value


class MetricsSettings(Part):
    listen: Annotated[str, StringConstraints(pattern=r"^\S+:\d{1,5}$")] | None = None
    """A separate address for metrics and health. The port for HTTP has no metrics then."""

    @property
    def address(self) -> tuple[str, int] | None:
        if self.listen is None:
            return None
        host, _, port = self.listen.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)


class ModelSettings(Part):
    """The facts about one model; prices are US dollars per million tokens."""

    context_tokens: Annotated[int, Field(ge=2_048)] | None = None
    output_tokens: PositiveInt | None = None
    price_in: Annotated[float, Field(ge=0)] | None = None
    price_out: Annotated[float, Field(ge=0)] | None = None
    price_cached: Annotated[float, Field(ge=0)] | None = None
    """The price of input that is read from the provider's cache."""
    price_cache_write: Annotated[float, Field(ge=0)] | None = None
    """The price of input that is written to the provider's cache."""
    images: bool | None = None
    """Whether the model accepts pictures."""
    tools: bool | None = None
    """Whether the model is offered tools. None: yes, until it refuses them."""
    pdfs: bool | None = None
    """Whether the model is sent PDFs as they are. Others are shown their text."""
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """The effort of prompts that name none."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """The temperature of prompts that name none."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Fields that are added to every request unchanged."""


class RoleSettings(Part):
    """The model of each role."""

    planner: str | None = None
    executor: str | None = None
    reviewer: str | None = None
    summarizer: str | None = None


class ContextSettings(Part):
    policy: Literal["epochs", "newest_live"] = "epochs"
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.85
    """The share of the budget above which the next context begins a new epoch."""
    keep: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The largest share of the budget that the context of a new epoch may take."""


ToolPolicy = Literal["allow", "ask", "deny"]


class ApprovalSettings(Part):
    wait_when_alone: bool = False
    """Whether a tool that needs approval waits for a client to attach when no attached client
    can decide; if not, it is denied at once."""


class McpServerSettings(Part):
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    url: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    headers: dict[str, str] = Field(default_factory=dict)
    cwd: HomePath | None = None
    policy: ToolPolicy = "ask"
    """The policy of all its tools; `tools` may override it for single ones."""
    seconds_max: PositiveFloat | None = None
    """How long a call waits for its result or the next progress message. None:
    `limits.tool_seconds_max`."""

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "McpServerSettings":
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either command or url")
        return self


HookCommand: TypeAlias = Annotated[tuple[str, ...], Field(min_length=1)]


class HookSettings(Part):
    """Commands to run when something happens in a conversation."""

    content: bool = False
    """Whether they are sent the texts of messages and the arguments of tools."""
    at_once: Annotated[int, Field(ge=1, le=64)] = 4
    timeout: PositiveFloat = 10.0
    turn_finished: tuple[HookCommand, ...] = ()
    asking: tuple[HookCommand, ...] = ()
    failed: tuple[HookCommand, ...] = ()
    message: tuple[HookCommand, ...] = ()


class ExtensionSettings(Part):
    """The operator's own Python; `nplt_server.extensions` loads and checks it."""

    tools: tuple[PythonName, ...] = ()
    widgets: tuple[PythonName, ...] = ()
    token_counter: PythonName | None = None
    on_compression: PythonName | None = None
    tool_executor: PythonName | None = None


class BackendSettings(Part):
    """The store of a history. The other keys depend on the type; `nplt_storage.opening` checks
    them."""

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
    """How conversations are found and created for clients that do not specify it themselves."""

    create: bool = False
    """Whether a conversation that a request names is created if it does not exist."""
    default: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")] = (
        "default"
    )
    """The conversation of clients that name none, if `create` is set."""


class FileSettings(Part):
    """Where files attached to conversations are kept, besides the server that received them."""

    type: Literal["redis", "directory"] = "redis"
    """`redis`: with their conversation, if that is in Redis. `directory`: only in `path`."""
    path: HomePath | None = None
    """The directory of the files; servers may share it. `<data_dir>/files` if it is not set."""
    bytes_max: PositiveInt = 16 * 1024 * 1024
    """Larger files are not kept in Redis."""


class HttpSettings(Part):
    """Settings for recording the requests of OpenAI's clients."""

    store_unstored: bool = False
    """Whether requests with `store: false` are recorded too, if they name a conversation."""
    record_unnamed: bool = False
    """Whether a chat completion that names no conversation is recorded, as a new one."""


class ClusterSettings(Part):
    """Several servers over one Redis."""

    advertise: Annotated[str, StringConstraints(pattern=r"^\S+:\d{1,5}$")] | None = None
    """The host:port at which the other servers reach this one."""
    secret_file: HomePath | None = None
    """Holds the shared secret of the cluster. If it is set, the servers relay to each other."""
    ca_file: HomePath | None = None
    """The CA certificates of the other servers, if the system does not trust their CA already."""


class GraphHistorySettings(Part):
    """The older form of one history's settings. `input_key` and `output_key` have no effect."""

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
    """Whether STATUS shows this user the figures of the whole server, not only their own."""


FallbackReason = Literal["unavailable", "overloaded", "rate_limited", "no_such_model", "no_credit"]
"""A wrong key, a bad request and a refusal are none: another model would hide the mistake."""
FALLBACK_ON: tuple[FallbackReason, ...] = ("unavailable", "overloaded", "rate_limited")


OnTooLong = Literal["ask", "fail", "cut"]
"""The handling of a prompt that does not fit its model's window. `ask`: a chat asks, and other
clients are refused; `fail`: it is refused; `cut`: its middle is left out."""


class Limits(Part):
    frame_bytes_before_token_max: PositiveInt = 4_096
    message_bytes_max: Annotated[int, Field(ge=65_536)] = 1024 * 1024
    unfinished_bytes_per_user_max: Annotated[int, Field(ge=1024 * 1024)] = 32 * 1024 * 1024
    unfinished_bytes_max: Annotated[int, Field(ge=1024 * 1024)] = 128 * 1024 * 1024
    http_body_bytes_max: PositiveInt = 16 * 1024 * 1024
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
    later_prompts_max: PositiveInt = 256
    later_days_max: PositiveFloat = 366.0
    turns_per_user_max: PositiveInt | None = None
    """None: 8 where users have tokens, else all of `turns_max`."""
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
    calls_max: PositiveInt = 10
    search_seconds_max: PositiveFloat = 5.0
    idle_conversation_seconds_max: Annotated[float, Field(ge=1)] = 60.0
    drain_seconds_max: Annotated[float, Field(ge=0)] = 8.0


class Settings(Part):
    listen: Listen = Listen.model_construct()
    data_dir: HomePath = Field(default_factory=lambda: user_dir("data"))
    default_model: str | None = None
    providers: tuple[ProviderSettings, ...] = ()
    """Empty: the vendors whose keys are in the environment, the local model, and offline/echo."""
    local_servers: dict[Name, Annotated[int, Field(ge=1, le=65_535)]] | None = None
    """Local model servers to look for, by port. None: the usual ones, which the loader fills in."""
    discover: bool = True
    """Whether local model servers are looked for at all."""
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    roles: RoleSettings = RoleSettings.model_construct()
    on_too_long: OnTooLong = "ask"
    fallback: tuple[str, ...] = ()
    fallback_on: tuple[FallbackReason, ...] = FALLBACK_ON
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
    files: FileSettings = FileSettings.model_construct()
    http: HttpSettings = HttpSettings.model_construct()
    metrics: MetricsSettings = MetricsSettings()
    hooks: HookSettings = HookSettings()
    users: tuple[UserSettings, ...] = ()
    limits: Limits = Limits.model_construct()
    insecure: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    log_file: HomePath | None = None
    log_file_bytes_max: Annotated[int, Field(ge=64 * 1024)] = 8 * 1024 * 1024
    log_files_kept: Annotated[int, Field(ge=1, le=100)] = 4

    @model_validator(mode="after")
    def _read_older_form(self) -> "Settings":
        """Reads `graph.history` as the only history, unless `histories` is given."""
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
        """The users of this machine who may connect, besides root. With tokens the default is any,
        because tokens identify users."""
        return self.listen.local_users or ("any" if self.users else "owner")

    @property
    def free_bytes_min(self) -> int | None:
        """The reserve of the first history kept in files, whose disk also holds the uploads."""
        kept = (each.backend.options for each in self.histories if each.backend.type == "json")
        reserve = next(kept, {}).get("free_bytes_min")
        return reserve if isinstance(reserve, int) else None

    @property
    def turns_per_user_max(self) -> int:
        """How many turns of one user run at once. Without tokens there is only one user."""
        limits = self.limits
        return limits.turns_per_user_max or (8 if self.users else limits.turns_max)

    @property
    def is_private(self) -> bool:
        """Whether only authorized users can connect, and nobody can eavesdrop."""
        return is_loopback(self.listen.host) or self.is_authorized

    @property
    def advertised(self) -> str | None:
        """The address at which other servers of the cluster reach this one: unless it is set, where
        it listens."""
        host, port, cluster = self.listen.host, self.listen.port, self.cluster
        if cluster.advertise is not None or cluster.secret_file is None:
            return cluster.advertise
        is_known = port and not (_is_address(host) and ipaddress.ip_address(host).is_unspecified)
        return f"{host}:{port}" if is_known else None

    @property
    def is_authorized(self) -> bool:
        """Whether users have tokens and connections use TLS, so that any address is safe."""
        return bool(self.users and self.listen.tls)

    def mistakes(self) -> list[str]:
        """Returns mistakes in the combination of values that are each valid."""
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
        if self.cluster.secret_file is not None and self.advertised is None:
            found.append(
                "cluster.secret_file needs cluster.advertise, because the others can't find this "
                "server by port 0 or by an address such as 0.0.0.0"
            )
        if not self.is_private and not self.insecure:
            found.append(
                f"listening on {self.listen.host} needs users with tokens and tls, "
                "or --insecure if you really mean it"
            )
        scraped_at = self.metrics.address
        if scraped_at and not (is_loopback(scraped_at[0]) or self.is_authorized or self.insecure):
            found.append(
                f"metrics.listen: {scraped_at[0]} needs users with tokens and tls, or --insecure "
                "if you really mean it"
            )
        return found
