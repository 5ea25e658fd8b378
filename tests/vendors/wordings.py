"""How each vendor says that a field is missing, unknown, or of the wrong kind.

OpenAI's sentences, `param` paths and codes, and Anthropic's (a pydantic message
behind a dotted path) are as users have pasted them into public issues.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.vendors.fields import Path, kind_of
from tests.vendors.rejections import Rejection


class AnthropicWording:
    def missing(self, path: Path) -> Rejection:
        return at(path, "Field required")

    def unknown(self, path: Path) -> Rejection:
        return at(path, "Extra inputs are not permitted")

    def wrong_kind(self, path: Path, kinds: Sequence[str], value: object) -> Rejection:
        pydantic_names = {"object": "dictionary", "array": "list"}
        wanted = pydantic_names.get(kinds[0], kinds[0])
        return at(path, f"Input should be a valid {wanted}")

    def not_one_of(self, path: Path, value: object, allowed: Sequence[str]) -> Rejection:
        return at(path, f"Input should be {or_list([repr(each) for each in allowed])}")

    def out_of_range(
        self, path: Path, value: float, *, least: float | None, most: float | None
    ) -> Rejection:
        if least is not None:
            return at(path, f"Input should be greater than or equal to {least}")
        return at(path, f"Input should be less than or equal to {most}")

    def no_match(self, path: Path, pattern: str) -> Rejection:
        return at(path, f"String should match pattern '{pattern}'")

    def too_long(self, path: Path, length: int, most: int) -> Rejection:
        return at(path, f"String should have at most {most} characters")

    def empty_array(self, path: Path) -> Rejection:
        return at(path, "List should have at least 1 item after validation, not 0")


def at(path: Path, message: str) -> Rejection:
    """Anthropic's: `messages.3.content.0: …`"""
    return Rejection(f"{'.'.join(map(str, path))}: {message}")


class OpenAIWording:
    def missing(self, path: Path) -> Rejection:
        name = bracketed(path)
        return invalid(
            f"Missing required parameter: '{name}'.", path, code="missing_required_parameter"
        )

    def unknown(self, path: Path) -> Rejection:
        name = bracketed(path)
        return invalid(f"Unknown parameter: '{name}'.", path, code="unknown_parameter")

    def wrong_kind(self, path: Path, kinds: Sequence[str], value: object) -> Rejection:
        wanted = or_list([_WITH_ARTICLE[kind] for kind in kinds if kind != "null"])
        one_of = "one of " if len([kind for kind in kinds if kind != "null"]) > 1 else ""
        return invalid(
            f"Invalid type for '{bracketed(path)}': expected {one_of}{wanted}, but got"
            f" {_WITH_ARTICLE[kind_of(value)]} instead.",
            path,
            code="invalid_type",
        )

    def not_one_of(self, path: Path, value: object, allowed: Sequence[str]) -> Rejection:
        supported = and_list([f"'{each}'" for each in allowed])
        return invalid(
            f"Invalid value: '{value}'. Supported values are: {supported}.",
            path,
            code="invalid_value",
        )

    def out_of_range(
        self, path: Path, value: float, *, least: float | None, most: float | None
    ) -> Rejection:
        kind = "integer" if isinstance(value, int) else "decimal"
        side, sign, bound = ("below minimum", ">=", least) if most is None else (
            "above maximum", "<=", most
        )  # fmt: skip
        return invalid(
            f"Invalid '{bracketed(path)}': {kind} {side} value. Expected a value {sign}"
            f" {bound}, but got {value} instead.",
            path,
            code=f"{kind}_{side.replace('imum', '').replace(' ', '_')}_value",
        )

    def no_match(self, path: Path, pattern: str) -> Rejection:
        return invalid(
            f"Invalid '{bracketed(path)}': string does not match pattern. Expected a string"
            f" that matches the pattern '{pattern}'.",
            path,
            code="invalid_value",
        )

    def too_long(self, path: Path, length: int, most: int) -> Rejection:
        return invalid(
            f"Invalid '{bracketed(path)}': string too long. Expected a string with maximum"
            f" length {most}, but got a string with length {length} instead.",
            path,
            code="string_above_max_length",
        )

    def empty_array(self, path: Path) -> Rejection:
        return invalid(
            f"Invalid '{bracketed(path)}': empty array. Expected an array with minimum length"
            " 1, but got an empty array instead.",
            path,
            code="empty_array",
        )


def invalid(message: str, path: Path, *, code: str | None = None) -> Rejection:
    """OpenAI's: the sentence names the place, and `param` does."""
    return Rejection(message, param=bracketed(path), code=code)


def bracketed(path: Path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def or_list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def and_list(words: Sequence[str]) -> str:
    if len(words) < 3:
        return " and ".join(words)
    return f"{', '.join(words[:-1])}, and {words[-1]}"


_WITH_ARTICLE = {
    "string": "a string",
    "array": "an array of objects",
    "object": "an object",
    "integer": "an integer",
    "number": "a decimal",
    "boolean": "a boolean",
    "null": "null",
}
