"""What was asked, kept between chats: a file of JSON strings, one a line, 0600.

Commands to the chat itself are not kept. Bounded: it is rewritten, whole and
atomically, when it has grown to twice what is kept. Lines that can't be read are
left out. If the file can't be written, the chat goes on without it: forgetting a
prompt is no reason to fail.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from nplt_client.chat_vocabulary import prompt_in

PROMPTS_KEPT = 1_000
_PROMPT_CHARACTERS_MAX = 100_000


class PromptHistory:
    def __init__(self, path: Path, *, kept: int = PROMPTS_KEPT) -> None:
        self._path = path
        self._kept = kept
        self._lines = 0

    def load(self) -> list[str]:
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return []
        self._lines = len(lines)
        prompts = [prompt for line in lines if (prompt := _prompt_in(line)) is not None]
        return prompts[-self._kept :]

    def add(self, prompt: str) -> None:
        if len(prompt) > _PROMPT_CHARACTERS_MAX or prompt_in(prompt) is None:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._append(prompt)
            if self._lines >= 2 * self._kept:
                self._rewrite(self.load())

    def _append(self, prompt: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps(prompt).encode() + b"\n")
        self._lines += 1

    def _rewrite(self, prompts: list[str]) -> None:
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(json.dumps(prompt).encode() + b"\n" for prompt in prompts)
        temporary.replace(self._path)
        self._lines = len(prompts)


def _prompt_in(line: bytes) -> str | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, str) and prompt_in(value) is not None else None
