"""Modules that are loaded late are exempt from garbage collections."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType

import pytest

from nplt_server.garbage import loading_modules


class Node:
    """Refers to itself, so that only the garbage collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def is_tracked(node: Node) -> bool:
    return any(each is node for each in gc.get_objects())


@pytest.mark.parametrize("loads", [True, False])
def test_objects_are_frozen_only_if_a_module_was_loaded(
    loads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node()
    with loading_modules():
        if loads:
            monkeypatch.setitem(sys.modules, "nplt_late_module", ModuleType("nplt_late_module"))
    assert is_tracked(node) is not loads


def test_garbage_from_before_a_module_was_loaded_is_collected() -> None:
    gc.disable()
    try:
        garbage = weakref.ref(Node())
        assert garbage() is not None
        with loading_modules():
            assert garbage() is None
    finally:
        gc.enable()
