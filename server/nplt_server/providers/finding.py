"""Who can answer when nobody was configured: vendors there is a key for, the model on
this machine, and at last `offline/echo`, which needs nothing."""

from __future__ import annotations

from collections.abc import Mapping

from nplt_server.provider_settings import (
    AnthropicSettings,
    AnyProviderSettings,
    LocalSettings,
    OfflineSettings,
    OpenAISettings,
)
from nplt_server.providers.keys import standard_variable
from nplt_server.providers.local.installed import local_is_installed


def found_providers(environ: Mapping[str, str]) -> tuple[AnyProviderSettings, ...]:
    found: list[AnyProviderSettings] = [
        vendor
        for vendor in (OpenAISettings(), AnthropicSettings())
        if environ.get(standard_variable(vendor, "API_KEY"), "").strip()
    ]
    if local_is_installed():
        found.append(LocalSettings())
    return (*found, OfflineSettings())
