"""What everybody who connects is told first: who answers here."""

from __future__ import annotations

from collections.abc import Sequence

from nplt_server import __version__
from nplt_server.provider_settings import AnyProviderSettings, LocalSettings, OfflineSettings

_HOW_TO_GET_MORE = (
    "set OPENAI_API_KEY or ANTHROPIC_API_KEY where the server starts, "
    "or list providers in its settings"
)


def greeting(default_model: str, providers: Sequence[AnyProviderSettings]) -> str:
    """And where no vendor's model can be asked, how to get one."""
    who = f"nplt {__version__}: {default_model} answers"
    if not all(isinstance(each, OfflineSettings | LocalSettings) for each in providers):
        return f"{who}."
    what = "it only echoes what you say"
    if default_model.partition("/")[0] in _ids_of_local(providers):
        what = "a very small model on this machine"
    return f"{who} ({what}; for others, {_HOW_TO_GET_MORE})."


def _ids_of_local(providers: Sequence[AnyProviderSettings]) -> set[str]:
    return {each.id for each in providers if isinstance(each, LocalSettings)}
