"""The references between the modules of packages, and the cycles they make.

A reference is any import, wherever it stands: at the top, in a function, under
`TYPE_CHECKING`, or by `import_module` with a name that is written out. A dotted name that
leads through an imported package to one of its modules (`package.module.Class`) is one too,
also inside an annotation that is a string. `from package import name` refers to the module of
that name if there is one, else to the package's `__init__`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

References: TypeAlias = Mapping[str, Mapping[str, int]]
"""For each module the modules it refers to, and in which line it does so first."""


def read_references(folders: Iterable[Path]) -> References:
    """`folders` hold packages."""
    files: dict[str, Path] = {}
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return {name: _Reader(name, file, files).references for name, file in files.items()}


def cycles(references: References) -> list[frozenset[str]]:
    """The strongly connected components of more than one module (Tarjan's algorithm)."""
    found: list[frozenset[str]] = []
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        path.append(name)
        for other in references[name]:
            if other not in number:
                visit(other)
            if other in path:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == number[name]:
            start = path.index(name)
            if len(path) - start > 1:
                found.append(frozenset(path[start:]))
            del path[start:]

    for name in references:
        if name not in number:
            visit(name)
    return found


def describe(cycle: frozenset[str], references: References) -> str:
    edges = (
        f"  {name}:{line} refers to {other}"
        for name in sorted(cycle)
        for other, line in sorted(references[name].items())
        if other in cycle
    )
    return "\n".join((f"These {len(cycle)} modules refer to each other:", *edges))


class _Reader(ast.NodeVisitor):
    """Collects the references of one file."""

    def __init__(self, name: str, file: Path, modules: Mapping[str, Path]) -> None:
        self.references: dict[str, int] = {}
        self._name = name
        self._package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        self._modules = modules
        self._imported: dict[str, str] = {}
        """The names that imports bind, and what they stand for."""
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._read_import(node)
            elif isinstance(node, ast.ImportFrom):
                self._read_import_from(node)
        self.visit(tree)

    def _refer_to(self, dotted: str, line: int) -> None:
        """Refers to the longest beginning of the name that is a module."""
        while dotted and dotted not in self._modules:
            dotted = dotted.rpartition(".")[0]
        if dotted and dotted != self._name:
            self.references.setdefault(dotted, line)

    def _read_import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._refer_to(alias.name, node.lineno)
            bound = alias.asname or alias.name.partition(".")[0]
            self._imported[bound] = alias.name if alias.asname else bound

    def _read_import_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            parts = self._package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1])
            module = f"{base}.{module}" if module else base
        for alias in node.names:
            self._refer_to(f"{module}.{alias.name}", node.lineno)
            self._imported[alias.asname or alias.name] = f"{module}.{alias.name}"

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._read_dotted(node)
        self.generic_visit(node)

    def _read_dotted(self, node: ast.Attribute, *, line: int = 0) -> None:
        if (dotted := _dotted(node)) is None:
            return
        root, _, rest = dotted.partition(".")
        start = self._imported.get(root)
        if start is not None and f"{start}.{rest}".partition(".")[0] in self._modules:
            self._refer_to(f"{start}.{rest}", line or node.lineno)

    def visit_Call(self, node: ast.Call) -> None:
        called = (_dotted(node.func) or "").rpartition(".")[2]
        match called, node.args:
            case "import_module", [ast.Constant(value=str(name)), *_]:
                self._refer_to(name, node.lineno)
            case "cast", [kind, *_]:
                self._read_annotation(kind)
            case _:
                pass
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._read_annotation(node.annotation)
        if node.value is not None and ast.unparse(node.annotation).endswith("TypeAlias"):
            self._read_annotation(node.value)
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        self._read_annotation(node.annotation)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._read_annotation(node.returns)
        self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._read_annotation(node.returns)
        self.generic_visit(node)

    def _read_annotation(self, annotation: ast.expr | None) -> None:
        """Reads the strings in it as the expressions they are."""
        for part in ast.walk(annotation) if annotation is not None else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                for node in _nodes_of(part.value):
                    if isinstance(node, ast.Attribute):
                        self._read_dotted(node, line=part.lineno)


def _nodes_of(text: str) -> Iterator[ast.AST]:
    try:
        yield from ast.walk(ast.parse(text, mode="eval"))
    except SyntaxError:  # a word of a Literal
        return


def _dotted(node: ast.expr) -> str | None:
    """`a.b.c` as text; `None` if something else than a name is at its beginning."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)) is not None:
        return f"{before}.{node.attr}"
    return None
