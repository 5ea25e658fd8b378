"""Who can answer, as an operator says it: one entry of `providers` for each.

A key is never part of the settings: they say in which variable or file it is, and
whoever makes the provider looks there (`providers.keys`).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from nplt_server.settings_parts import HomePath, Name, Part

_KEY_HEADERS = {"authorization", "api-key", "x-api-key"}
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
_WHERE_KEYS_BELONG = (
    "a key is not written here: say api_key_env (a variable that holds it) "
    "or api_key_file (a file that only you can read)"
)


def checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected an address that begins with http:// or https://")
    if parts.username or parts.password:
        raise ValueError(_WHERE_KEYS_BELONG)
    return url


def _checked_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if name.lower() in _KEY_HEADERS:
            raise ValueError(_WHERE_KEYS_BELONG)
        if not _HEADER_NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise ValueError("expected names and values that a header can have")
    return headers


Headers = Annotated[dict[str, str], AfterValidator(_checked_headers)]
BaseUrl = Annotated[str, AfterValidator(checked_url)]
ModelName = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,128}$")]
"""As the server knows it: `meta-llama/Llama-3.3-70B`, `llama3:8b`."""
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


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
    api_key_file: HomePath | None = None
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
    headers: Annotated[dict[str, str], AfterValidator(_checked_headers)] = Field(
        default_factory=dict
    )


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
