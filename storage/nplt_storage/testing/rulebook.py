"""A rule: its name is the sentence that must hold, its body tries to break it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from nplt_storage.testing.maker import Ability, StoreMaker

Check: TypeAlias = Callable[[StoreMaker], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    check: Check
    needs: Ability | None = None


class RuleBook:
    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)

    def add(self, check: Check) -> Check:
        self._rules.append(Rule(check.__name__, check))
        return check

    def add_where(self, ability: Ability) -> Callable[[Check], Check]:
        """A rule for stores whose maker has that ability."""

        def add(check: Check) -> Check:
            self._rules.append(Rule(check.__name__, check, ability))
            return check

        return add
