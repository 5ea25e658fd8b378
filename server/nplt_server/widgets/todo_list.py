"""A todo list as a value, and as the JSON it is kept as.

What can't be done raises a sentence for the model, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeGuard

from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_server.tools.base import ToolFailed

ITEMS_MAX: Final = 100
TEXT_CHARACTERS_MAX: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TodoItem:
    number: int
    text: str
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TodoList:
    items: tuple[TodoItem, ...] = ()
    next_number: int = 1
    """Goes up only: a number that was removed is not given again."""

    @classmethod
    def from_state(cls, state: Mapping[str, JsonValue]) -> TodoList:
        """An erased state is an empty list, and what is no item is passed over."""
        kept = state.get("items")
        read = map(_read_item, kept if isinstance(kept, list) else [])
        items = tuple(item for item in read if item is not None)
        after_all = max((item.number for item in items), default=0) + 1
        said = state.get("next_number")
        return cls(items=items, next_number=max(after_all, said if _is_number(said) else 1))

    def as_state(self) -> JsonObject:
        items: list[JsonValue] = [
            {"number": item.number, "text": item.text, "done": item.done} for item in self.items
        ]
        return {"items": items, "next_number": self.next_number}

    def with_added(self, texts: Sequence[str]) -> TodoList:
        if len(self.items) + len(texts) > ITEMS_MAX:
            raise ToolFailed(
                f"the list holds at most {ITEMS_MAX} items and has {len(self.items)}: "
                f"there is no room for {len(texts)} more. Remove what is done first"
            )
        added = tuple(
            TodoItem(number=number, text=_one_line(text))
            for number, text in enumerate(texts, self.next_number)
        )
        return TodoList(items=self.items + added, next_number=self.next_number + len(added))

    def with_done(self, numbers: Iterable[int], *, done: bool) -> TodoList:
        named = self._there(numbers)
        return replace(
            self,
            items=tuple(
                replace(item, done=done) if item.number in named else item for item in self.items
            ),
        )

    def without(self, numbers: Iterable[int]) -> TodoList:
        named = self._there(numbers)
        return replace(self, items=tuple(item for item in self.items if item.number not in named))

    def cleared(self) -> TodoList:
        return replace(self, items=())

    def _there(self, numbers: Iterable[int]) -> set[int]:
        named = set(numbers)
        there = [item.number for item in self.items]
        if missing := sorted(named.difference(there)):
            listed = ", ".join(map(str, there)) or "none: the list is empty"
            raise ToolFailed(
                f"there is no item {', '.join(map(str, missing))}, so nothing was changed; "
                f"the items are {listed}"
            )
        return named


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    if not line:
        raise ToolFailed("an item has a text; nothing was added")
    if len(line) > TEXT_CHARACTERS_MAX:
        raise ToolFailed(
            f"an item has at most {TEXT_CHARACTERS_MAX} characters, and one of these has "
            f"{len(line):,}; nothing was added"
        )
    return line


def _read_item(source: JsonValue) -> TodoItem | None:
    match source:
        case {"number": int(number), "text": str(text), "done": bool(done)} if _is_number(number):
            return TodoItem(number=number, text=text, done=done)
        case _:
            return None


def _is_number(value: JsonValue) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
