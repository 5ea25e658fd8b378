"""Who can answer, as an operator says it: one entry of `providers` for each.

A key is never part of the settings: they say in which variable or file it is, and
whoever makes the provider looks there (`providers.keys`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from nplt_server.settings_parts import HomePath, Name, Part

_KEY_WORDS = {"apikey", "auth", "authorization", "cookie", "key", "secret", "token"}
"""In the name of a header, between its dashes."""
_BEGINS_LIKE_A_KEY = re.compile(
    r"(bearer|basic) .+|(sk|gsk|xai|hf|nvapi|aiza)[-_]?[a-z0-9_-]{12,}", re.IGNORECASE
)
_MIXED_LIKE_A_KEY = re.compile(r"(?=.{24})(?=.*[0-9])(?=.*[a-z])[A-Za-z0-9]+")
"""As nobody calls a variable or a file."""
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
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
        if _KEY_WORDS & set(name.lower().split("-")) or _BEGINS_LIKE_A_KEY.fullmatch(value):
            raise ValueError(_WHERE_KEYS_BELONG)
        if not _HEADER_NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise ValueError("expected names and values that a header can have")
    return headers


def _no_key(name: str) -> str:
    """Of what is told where it is not found: by then it would be in a log."""
    if _BEGINS_LIKE_A_KEY.fullmatch(name) or _MIXED_LIKE_A_KEY.fullmatch(name):
        raise ValueError(f"that looks like the key itself: {_WHERE_KEYS_BELONG}")
    return name


def _no_key_for_a_path(path: Path) -> Path:
    _no_key(str(path))
    return path


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
    function: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    models: Annotated[tuple[Name, ...], Field(min_length=1)] = ("model",)


class LocalSettings(Part):
    """A small model on this machine."""

    id: Name = "local"
    type: Literal["local"] = "local"


class _VendorSettings(Part):
    api_key_env: VariableName | None = None
    api_key_file: Annotated[HomePath, AfterValidator(_no_key_for_a_path)] | None = None
    base_url: BaseUrl | None = None
    models: tuple[ModelName, ...] = ()
    """None: those we know the vendor to have."""

    @model_validator(mode="before")
    @classmethod
    def _keeps_no_key(cls, given: Any) -> Any:
        if isinstance(given, dict) and {"api_key", "key"} & given.keys():
            raise ValueError(_WHERE_KEYS_BELONG)
        return given

    @model_validator(mode="after")
    def _says_what_it_must(self) -> _VendorSettings:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("needs either api_key_env or api_key_file, not both")
        if self.base_url is not None and not self.models:
            raise ValueError("needs models: what a server of your own has is not known here")
        return self


class OpenAISettings(_VendorSettings):
    """OpenAI, or any server that speaks as OpenAI does."""

    id: Name = "openai"
    type: Literal["openai"] = "openai"
    api: Literal["chat", "responses"] | None = None
    """None: responses at OpenAI itself, chat everywhere else."""
    headers: Headers = Field(default_factory=dict)
    tokens_field: TokensField = "max_completion_tokens"
    """Chat: older servers overlook the one, OpenAI's reasoning models refuse the other."""
    returns_reasoning: bool = False
    """Chat: DeepSeek wants to see its reasoning again, OpenAI refuses the field."""
    summarizes_reasoning: bool = False
    """Responses: OpenAI refuses it to organisations that have not shown who they are."""


class AnthropicSettings(_VendorSettings):
    id: Name = "anthropic"
    type: Literal["anthropic"] = "anthropic"


VendorSettings: TypeAlias = OpenAISettings | AnthropicSettings
AnyProviderSettings: TypeAlias = OfflineSettings | PythonSettings | LocalSettings | VendorSettings
ProviderSettings = Annotated[AnyProviderSettings, Field(discriminator="type")]
PROVIDER_KINDS: dict[str, type[Part]] = {
    "offline": OfflineSettings,
    "python": PythonSettings,
    "local": LocalSettings,
    "openai": OpenAISettings,
    "anthropic": AnthropicSettings,
}
