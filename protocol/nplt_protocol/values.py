"""Frozen dataclasses that cost next to nothing to define.

`dataclasses.dataclass` writes and compiles five functions for every class,
about a millisecond each time: for all that can be said on the wire, most of
the time a short command takes. Here the standard decorator does the fields
and the slots, and the methods are shared. Type checkers are shown the real
decorator, `dataclasses.replace`, `fields` and `is_dataclass` work; only the
combination this package uses exists: frozen, slotted, keyword-only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError
from typing import Any, TypeVar

T = TypeVar("T")


def dataclass(*, frozen: bool, slots: bool, kw_only: bool) -> Callable[[type[T]], type[T]]:
    if not (frozen and slots and kw_only):
        raise TypeError("values are frozen, slotted and keyword-only")
    return _value_class


def _value_class(cls: type[T]) -> type[T]:
    # With no docstring the standard decorator would render a signature.
    cls.__doc__ = cls.__doc__ or cls.__name__
    made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)(cls)
    shared = {
        "__init__": _initializer(made),
        "__repr__": _repr,
        "__eq__": _equal,
        "__hash__": _hash,
        "__reduce__": _reduce,
        "__setattr__": _frozen,
        "__delattr__": _frozen,
    }
    for name, method in shared.items():
        setattr(made, name, method)
    return made


def _initializer(cls: Any) -> Callable[..., None]:
    # The slot's own setter passes by the frozen `__setattr__`.
    plan = tuple(
        (field.name, getattr(cls, field.name).__set__, field.default, field.default_factory)
        for field in dataclasses.fields(cls)
    )

    def __init__(self: object, **said: object) -> None:  # noqa: N807
        for name, put, default, factory in plan:
            if name in said:
                put(self, said.pop(name))
            elif default is not MISSING:
                put(self, default)
            elif factory is not MISSING:
                put(self, factory())
            else:
                raise TypeError(f"{cls.__name__} needs {name!r}")
        if said:
            raise TypeError(f"{cls.__name__} has no {next(iter(said))!r}")

    return __init__


def _contents(value: Any) -> tuple[object, ...]:
    return tuple([getattr(value, name) for name in value.__slots__])


def _repr(self: Any) -> str:
    said = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
    return f"{type(self).__name__}({said})"


def _equal(self: object, other: object) -> bool:
    return type(self) is type(other) and _contents(self) == _contents(other)


def _hash(self: object) -> int:
    return hash(_contents(self))


def _rebuild(cls: Callable[..., object], said: dict[str, object]) -> object:
    return cls(**said)


def _reduce(self: Any) -> tuple[object, ...]:
    return _rebuild, (type(self), {name: getattr(self, name) for name in self.__slots__})


def _frozen(self: object, name: str, *_: object) -> None:
    raise FrozenInstanceError(f"{type(self).__name__}.{name} can't be changed")
