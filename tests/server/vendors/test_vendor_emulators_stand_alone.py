"""The emulators are for anybody's tests: they need nothing of the server, nor it of them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import nplt_server
from nplt_server.testing import vendors

SERVER = Path(nplt_server.__file__).parent
TESTING = SERVER / "testing"


def imported_by(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_they_need_the_standard_library_and_one_package() -> None:
    names = {name for path in TESTING.rglob("*.py") for name in imported_by(path)}
    foreign = {name for name in names if name.split(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if not name.startswith("nplt_server.testing")} == {"orjson"}


def test_the_server_never_imports_them() -> None:
    others = [path for path in SERVER.rglob("*.py") if TESTING not in path.parents]
    assert [path for path in others if "nplt_server.testing" in path.read_text()] == []


def test_all_that_a_test_says_can_be_had_from_the_top() -> None:
    assert all(hasattr(vendors, name) for name in vendors.__all__)
