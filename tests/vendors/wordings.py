"""How each vendor says that a field is missing, unknown, or of the wrong kind.

OpenAI names the place in the sentence and as `param`; Anthropic puts a dotted path before
the sentence. The sentences are rows of `openai_rules` and `anthropic_rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.vendors.anthropic_rules import ANTHROPIC
from tests.vendors.fields import Path, kind_of
from tests.vendors.openai_rules import OPENAI
from tests.vendors.rejections import Rejection


class AnthropicWording:
    def missing(self, path: Path) -> Rejection:
        return ANTHROPIC["anthropic-missing"].at(path)

    def unknown(self, path: Path) -> Rejection:
        return ANTHROPIC["anthropic-unknown"].at(path)

    def wrong_kind(self, path: Path, kinds: Sequence[str], value: object) -> Rejection:
        pydantic_names = {"object": "dictionary", "array": "list"}
        wanted = pydantic_names.get(kinds[0], kinds[0])
        return ANTHROPIC["anthropic-kind"].at(path, wanted=wanted)

    def not_one_of(self, path: Path, value: object, allowed: Sequence[str]) -> Rejection:
        wanted = or_list([repr(each) for each in allowed])
        return ANTHROPIC["anthropic-choice"].at(path, wanted=wanted)

    def out_of_range(
        self, path: Path, value: float, *, least: float | None, most: float | None
    ) -> Rejection:
        if least is not None:
            return ANTHROPIC["anthropic-least"].at(path, least=least)
        return ANTHROPIC["anthropic-most"].at(path, least=0, most=most)

    def no_match(self, path: Path, pattern: str) -> Rejection:
        return ANTHROPIC["anthropic-pattern"].at(path, pattern=pattern)

    def too_long(self, path: Path, length: int, most: int) -> Rejection:
        return ANTHROPIC["anthropic-length"].at(path, most=most)


class OpenAIWording:
    def missing(self, path: Path) -> Rejection:
        return _openai("openai-missing", path)

    def unknown(self, path: Path) -> Rejection:
        return _openai("openai-unknown", path)

    def wrong_kind(self, path: Path, kinds: Sequence[str], value: object) -> Rejection:
        named = [_NAMES[kind] for kind in kinds if kind != "null"]
        wanted = _with_article(or_list(named))
        one_of = "one of " if len(named) > 1 else ""
        given = _with_article(_NAMES[kind_of(value)])
        return _openai("openai-kind", path, wanted=f"{one_of}{wanted}", given=given)

    def not_one_of(self, path: Path, value: object, allowed: Sequence[str]) -> Rejection:
        supported = and_list([f"'{each}'" for each in allowed])
        return _openai("openai-choice", path, value=value, supported=supported)

    def out_of_range(
        self, path: Path, value: float, *, least: float | None, most: float | None
    ) -> Rejection:
        kind = "integer" if isinstance(value, int) else "decimal"
        side, sign, bound = ("below minimum", ">=", least) if most is None else (
            "above maximum", "<=", most
        )  # fmt: skip
        refused = _openai(
            "openai-range", path, kind=kind, side=side, sign=sign, bound=bound, value=value
        )
        refused.code = f"{kind}_{side.replace('imum', '').replace(' ', '_')}_value"
        return refused

    def no_match(self, path: Path, pattern: str) -> Rejection:
        return _openai("openai-pattern", path, pattern=pattern)

    def too_long(self, path: Path, length: int, most: int) -> Rejection:
        return _openai("openai-length", path, length=length, most=most)

    def empty_array(self, path: Path) -> Rejection:
        return _openai("openai-empty-array", path)


def _openai(rule: str, path: Path, **words: Any) -> Rejection:
    place = bracketed(path)
    return OPENAI[rule].refusal(param=place, path=place, **words)


def bracketed(path: Path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def or_list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def and_list(words: Sequence[str]) -> str:
    if len(words) < 3:
        return " and ".join(words)
    return f"{', '.join(words[:-1])}, and {words[-1]}"


_NAMES = {
    "string": "string",
    "array": "array of objects",
    "object": "object",
    "integer": "integer",
    "number": "decimal",
    "boolean": "boolean",
    "null": "null",
}


def _with_article(name: str) -> str:
    if name == "null":
        return name
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
