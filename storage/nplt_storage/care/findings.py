"""What the doctor has to say, one sentence each.

A finding is either *wrong* (something that was remembered is lost, or can't be
relied on, and a person should act) or a *note* (worth knowing; the next start
takes care of it, or nothing needs to).
"""

from __future__ import annotations

from dataclasses import dataclass

from nplt_storage.facts.json_values import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    code: str
    """A word for a program; `message` is the sentence for a person."""
    message: str
    is_wrong: bool = True
    file: str = ""
    """Relative to the data directory."""
    offset: int | None = None
    """The first byte it is about."""
    seqs: tuple[int, int] | None = None
    """The first and the last entry it is about."""

    def as_json(self) -> JsonObject:
        source: JsonObject = {
            "file": self.file,
            "level": "wrong" if self.is_wrong else "note",
            "code": self.code,
            "message": self.message,
        }
        if self.offset is not None:
            source["offset"] = self.offset
        if self.seqs is not None:
            source["seqs"] = list(self.seqs)
        return source


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def note(code: str, message: str, *, offset: int | None = None) -> Finding:
    return Finding(code=code, message=message, is_wrong=False, offset=offset)
