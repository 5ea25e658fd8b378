"""What people love stays small at its largest. When this bites, split by idea."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("protocol", "storage", "server", "client")
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 45
CLASS_LINES_MAX = 250

SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def definitions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Each function and class: its name, its lines, and how many it may have."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = node.body[0]
            documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            doc_lines = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
            lines = (node.end_lineno or 0) - node.lineno + 1
            lines_max = CLASS_LINES_MAX if isinstance(node, ast.ClassDef) else FUNCTION_LINES_MAX
            yield node.name, lines - doc_lines - sum(map(slots_lines, node.body)), lines_max


def slots_lines(statement: ast.stmt) -> int:
    """A list of names is no more to read for being long."""
    if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__slots__":
        return (statement.end_lineno or 0) - statement.lineno + 1
    return 0


def test_every_file_function_and_class_is_of_readable_size() -> None:
    long = [path for path in SOURCES if len(path.read_text().splitlines()) > FILE_LINES_MAX]
    assert long == []
    large = [
        f"{path.relative_to(ROOT)}: {name} has {lines} lines, at most {lines_max}"
        for path in SOURCES
        for name, lines, lines_max in definitions(path)
        if lines > lines_max
    ]
    assert large == []


def test_every_module_says_why_it_exists() -> None:
    written = [path for path in SOURCES if path.read_text().strip()]
    assert [path for path in written if not ast.get_docstring(tree_of(path))] == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    nothing = {"util", "utils", "helpers", "common", "misc", "handler", "service", "impl"}
    assert [path for path in SOURCES if path.stem in nothing] == []
