"""What a Claude model takes, read off its name.

Documented: thinking by a budget of tokens up to the 4.5 models, adaptively from 4.6 on;
no sampling parameters from 4.7 on; `effort` from Opus 4.5 on, `max` from 4.6 and `xhigh`
from 4.7 on; models from 5.5 on, and Fable and Mythos, can't be told not to think. A name
nobody knows belongs to another vendor's model behind the same API: it gets nothing but
what was asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

ThinkingKind: TypeAlias = Literal["none", "budget", "adaptive"]

EFFORTS = ("low", "medium", "high", "xhigh", "max")

_FAMILIES = "opus|sonnet|haiku|fable|mythos"
_FAMILY_FIRST = re.compile(rf"claude-({_FAMILIES})-(\d{{1,2}})(?:[-.](\d{{1,2}}))?(?!\d)")
_VERSION_FIRST = re.compile(rf"claude-(\d{{1,2}})(?:[-.](\d{{1,2}}))?-({_FAMILIES})")
_ALWAYS_THINKING = re.compile(r"claude-(fable|mythos)")
_ADAPTIVE_SINCE = (4, 6)
_NO_SAMPLING_SINCE: tuple[int, int] = (4, 7)
_BUDGET_SINCE = (3, 7)
_ALWAYS_THINKING_SINCE: tuple[int, int] = (5, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAbilities:
    thinking: ThinkingKind = "none"
    can_leave_thinking: bool = True
    """Whether it takes the word that it shall not think."""
    efforts: tuple[str, ...] = ()
    takes_temperature: bool = True


def abilities_of(model: str) -> ModelAbilities:
    name = model.lower()
    family, version = _family_and_version(name)
    if version is None:
        if _ALWAYS_THINKING.search(name):  # previews have no number
            version = _NO_SAMPLING_SINCE
        else:
            return ModelAbilities()
    return ModelAbilities(
        thinking=_thinking(version),
        can_leave_thinking=not (version >= _ALWAYS_THINKING_SINCE or _ALWAYS_THINKING.search(name)),
        efforts=_efforts(family, version),
        takes_temperature=version < _NO_SAMPLING_SINCE,
    )


def _family_and_version(name: str) -> tuple[str, tuple[int, int] | None]:
    if found := _FAMILY_FIRST.search(name):
        return found[1], (int(found[2]), int(found[3] or 0))
    if found := _VERSION_FIRST.search(name):
        return found[3], (int(found[1]), int(found[2] or 0))
    return "", None


def _thinking(version: tuple[int, int]) -> ThinkingKind:
    if version >= _ADAPTIVE_SINCE:
        return "adaptive"
    return "budget" if version >= _BUDGET_SINCE else "none"


def _efforts(family: str, version: tuple[int, int]) -> tuple[str, ...]:
    if version >= _NO_SAMPLING_SINCE:
        return EFFORTS
    if version >= _ADAPTIVE_SINCE:
        return ("low", "medium", "high", "max")
    return ("low", "medium", "high") if (family, version) == ("opus", (4, 5)) else ()
