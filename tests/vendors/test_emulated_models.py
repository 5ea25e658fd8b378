"""The emulators know every model that the server's settings name."""

from __future__ import annotations

from tests.vendors.models import CLAUDE_MODELS, GPT_MODELS

from nplt_server.settings import vendor_named


def test_the_emulators_know_all_models_of_the_settings() -> None:
    assert set(vendor_named("openai")["models"]) <= {model.name for model in GPT_MODELS}
    assert set(vendor_named("anthropic")["models"]) <= {model.name for model in CLAUDE_MODELS}
