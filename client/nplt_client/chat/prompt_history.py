"""The prompts that were typed: the file that stores them, and moving through them.

The history is a file of JSON objects, one per line, mode 0600, shared by all chats. Each prompt
is stored with its message id, by which the server names prompts that were redacted. Commands are
not stored. The file is bounded: it is rewritten atomically when it has twice as many lines as are
kept. A chat that can't write it continues without a history.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from pathlib import Path

from msgspec import Struct

PROMPTS_FILE = "prompts.jsonl"
"""Its name in the state directory."""
PROMPTS_KEPT = 1_000
_PROMPT_CHARACTERS_MAX = 100_000


def parse_prompt(line: str) -> str | None:
    """Returns the text for the model; `None` if the line is a command."""
    if line.startswith("//"):
        return line[1:]
    return None if line.startswith("/") else line


class TypedPrompt(Struct, frozen=True, kw_only=True):
    """A line of the history: a prompt as it was typed, and the id with which it was sent."""

    text: str
    message_id: str = ""
    """Empty in lines that an older program wrote."""


class PromptHistory:
    def __init__(self, path: Path, *, kept: int = PROMPTS_KEPT) -> None:
        self._path = path
        self._kept = kept
        self._lines = 0

    def load(self) -> list[str]:
        """The texts, the oldest first; equal ones in a row count once."""
        return [text for text, _ in groupby(one.text for one in self._load())]

    def _load(self) -> list[TypedPrompt]:
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return []
        self._lines = len(lines)
        prompts: list[TypedPrompt] = []
        for line in lines:
            with contextlib.suppress(ValueError):
                prompt = _parsed(json.loads(line))
                if prompt is not None and parse_prompt(prompt.text) is not None:
                    prompts.append(prompt)
        return prompts[-self._kept :]

    def add(self, prompt: str, message_id: str = "") -> None:
        if len(prompt) > _PROMPT_CHARACTERS_MAX or parse_prompt(prompt) is None:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            typed = TypedPrompt(text=prompt, message_id=message_id)
            _write(self._path, os.O_APPEND | os.O_CLOEXEC, [typed])
            self._lines += 1
            if self._lines >= 2 * self._kept:
                self._replace(self._load())

    def forget(self, message_ids: Collection[str]) -> set[str]:
        """Drops the prompts with these ids, and all others with the same text. Returns the
        dropped texts."""
        named = set(message_ids) - {""}
        prompts = self._load() if named else []
        dropped = {one.text for one in prompts if one.message_id in named}
        if dropped:
            with contextlib.suppress(OSError):
                self._replace([one for one in prompts if one.text not in dropped])
        return dropped

    def _replace(self, prompts: Sequence[TypedPrompt]) -> None:
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        temporary.unlink(missing_ok=True)
        _write(temporary, os.O_EXCL, prompts)
        temporary.replace(self._path)
        self._lines = len(prompts)


def _parsed(line: object) -> TypedPrompt | None:
    match line:
        case str() as text:  # an older program wrote it
            return TypedPrompt(text=text)
        case {"text": str() as text, "message_id": str() as message_id}:
            return TypedPrompt(text=text, message_id=message_id)
        case _:
            return None


def _write(path: Path, flags: int, prompts: Iterable[TypedPrompt]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        # As ASCII: a prompt may hold half of a surrogate pair, which is not UTF-8.
        lines = (json.dumps({"text": one.text, "message_id": one.message_id}) for one in prompts)
        file.writelines(line.encode() + b"\n" for line in lines)


class PromptRecall:
    """Moves through earlier prompts with Up and Down.

    The draft in the input is kept, and comes back after the newest prompt. An earlier prompt
    that was edited becomes the draft.
    """

    def __init__(self, prompts: Iterable[str] = ()) -> None:
        self._prompts = list(prompts)
        self._place = len(self._prompts)
        self._draft = ""

    @property
    def newest_first(self) -> list[str]:
        """The prompts without duplicates and without commands."""
        prompts = [one for one in reversed(self._prompts) if parse_prompt(one) is not None]
        return list(dict.fromkeys(prompts))

    def remember(self, prompt: str) -> bool:
        """Adds a prompt; returns False if it equals the last one."""
        is_new = bool(prompt.strip()) and self._prompts[-1:] != [prompt]
        if is_new:
            self._prompts.append(prompt)
        self._place = len(self._prompts)
        self._draft = ""
        return is_new

    def forget(self, prompts: Collection[str]) -> None:
        self._prompts = [one for one in self._prompts if one not in prompts]
        self._place = len(self._prompts)

    def older(self, typed: str) -> str | None:
        self._keep_draft(typed)
        if self._place == 0:
            return None
        self._place -= 1
        return self._prompts[self._place]

    def newer(self, typed: str) -> str | None:
        self._keep_draft(typed)
        if self._place >= len(self._prompts):
            return None
        self._place += 1
        return self._draft if self._place == len(self._prompts) else self._prompts[self._place]

    def _keep_draft(self, typed: str) -> None:
        at_end = self._place == len(self._prompts)
        if at_end or typed != self._prompts[self._place]:
            self._draft = typed
            self._place = len(self._prompts)
