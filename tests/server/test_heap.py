"""Modules that are loaded late are exempt from garbage collections, threads share heaps, and long
lists are freed in slices."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType

import pytest

from nplt_server.heap import free_in_slices, loading_modules

_HEAPS = """
import ctypes, os, sys, tempfile, threading
from nplt_server.heap import limit_heaps
if sys.argv[1:]: limit_heaps()
barrier = threading.Barrier(12)
def allocate():
    barrier.wait()
    held = [bytes(5_000) for _ in range(100)]
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(12)]
for each in threads: each.start()
for each in threads: each.join()
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(library.fopen(file.name.encode(), b"w"))
    library.malloc_info(0, stream)
    library.fclose(stream)
    print(file.read().count(b"<heap "))
"""


def heaps_of_a_dozen_threads(*arguments: str, **environment: str) -> int:
    clean = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", _HEAPS, *arguments],
        env=clean | environment,
        capture_output=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="of the GNU C library")
def test_threads_share_one_heap_unless_the_environment_says_how_many() -> None:
    assert heaps_of_a_dozen_threads() > 2
    assert heaps_of_a_dozen_threads("limited") == 2
    assert heaps_of_a_dozen_threads("limited", MALLOC_ARENA_MAX="4") == 4


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


def test_all_items_of_a_long_list_are_freed() -> None:
    nodes = [Node() for _ in range(2_500)]
    freed: list[object] = []
    kept = [weakref.ref(node, freed.append) for node in nodes]
    items: list[list[Node]] = [[node] for node in nodes]
    nodes.clear()
    free_in_slices(items)
    gc.collect()
    assert (items, len(freed)) == ([], len(kept))
