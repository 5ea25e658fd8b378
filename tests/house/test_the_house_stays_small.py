"""What people love stays small at its largest. When this bites, split by idea."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("protocol", "storage", "server", "client")
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 45
CLASS_LINES_MAX = 250

SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def definitions(path: Path, *kinds: type[ast.AST]) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, kinds):
            assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            first = node.body[0]
            documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            doc_lines = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
            lines = (node.end_lineno or 0) - node.lineno + 1
            yield node.name, lines - doc_lines - sum(map(slots_lines, node.body))


def slots_lines(statement: ast.stmt) -> int:
    """A list of names is no more to read for being long."""
    if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__slots__":
        return (statement.end_lineno or 0) - statement.lineno + 1
    return 0


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_function_and_class_is_of_readable_size(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES_MAX
    long = [
        (name, lines)
        for name, lines in definitions(path, ast.FunctionDef, ast.AsyncFunctionDef)
        if lines > FUNCTION_LINES_MAX
    ]
    assert long == []
    large = [
        (name, lines) for name, lines in definitions(path, ast.ClassDef) if lines > CLASS_LINES_MAX
    ]
    assert large == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_why_it_exists(path: Path) -> None:
    source = path.read_text()
    if source.strip():
        assert ast.get_docstring(ast.parse(source))


def test_no_module_has_a_name_that_says_nothing() -> None:
    nothing = {"util", "utils", "helpers", "common", "misc", "handler", "service", "impl"}
    assert [path for path in SOURCES if path.stem in nothing] == []
