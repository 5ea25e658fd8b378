"""A draft in the person's own editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from nplt_client.errors import ConfigurationError


def editor_command(environ: Mapping[str, str] = os.environ) -> list[str]:
    return shlex.split(environ.get("VISUAL") or environ.get("EDITOR") or "vi")


def edit(draft: str) -> str:
    """Blocks until the editor is closed; the terminal must be free for it."""
    command = editor_command()
    # A folder of our own: editors that write anew would lose a file's own mode.
    with tempfile.TemporaryDirectory(prefix="nplt-") as folder:
        path = Path(folder, "prompt.md")
        path.touch(mode=0o600)
        path.write_text(draft, encoding="utf-8")
        try:
            done = subprocess.run([*command, str(path)], check=False)
        except OSError as error:
            raise ConfigurationError(f"can't start {command[0]}: {error.strerror}") from None
        if done.returncode:
            raise ConfigurationError(f"{command[0]} ended with code {done.returncode}")
        return path.read_text(encoding="utf-8", errors="replace").rstrip("\n")
