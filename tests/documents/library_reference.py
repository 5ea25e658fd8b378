"""Makes the reference in docs/library.md from the code.

    python -m tests.documents.library_reference            # checks that it is up to date
    python -m tests.documents.library_reference --write    # updates it

It lists every public name of `nplt_client` with its signature and docstring, fields with the note
below them, and a link to the part of the page whose example uses the name.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import nplt_client

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
BEGIN, END = "<!-- reference, made from the code -->\n", "<!-- end of reference -->\n"
_WIDTH = 100
_KINDS = {
    "Connecting": ("connect", "Client", "EventFeed", "Patience", "ConnectionState"),
    "States of a connection": ("Online", "Reconnecting", "Offline"),
    "Asking": ("PromptFields", "Turn", "Receipt"),
}
"""Headings, and the names below them; events, errors and replies follow by their kind."""


class Module:
    """The classes and functions of a module, found in its source."""

    def __init__(self, name: str) -> None:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        self.nodes: dict[str, ast.stmt] = {}
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                self.nodes.setdefault(node.name, node)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.nodes[node.target.id] = node

    def members(self, node: ast.ClassDef) -> Iterator[tuple[ast.stmt, str]]:
        """The members of a class, those of its bases in the module first, each with its note."""
        for base in node.bases:
            known = self.nodes.get(base.id) if isinstance(base, ast.Name) else None
            if isinstance(known, ast.ClassDef):
                yield from self.members(known)
        for member, after in zip(node.body, [*node.body[1:], None], strict=True):
            match after:
                case ast.Expr(value=ast.Constant(value=str(note))):
                    yield member, note
                case _:
                    yield member, ""


def _modules() -> dict[str, Module]:
    modules = {module: Module(module) for module in nplt_client._NAMES_OF}
    return {name: modules[module] for name, module in nplt_client._MODULE_OF.items()}


def _in_short(docstring: str | None) -> str:
    """The first paragraph."""
    return " ".join((docstring or "").strip().partition("\n\n")[0].split())


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    wait = "await " if isinstance(node, ast.AsyncFunctionDef) and not _yields(node) else ""
    return f"{wait}{node.name}({arguments}){returns}"


def _yields(node: ast.AsyncFunctionDef) -> bool:
    return any(isinstance(inner, ast.Yield) for inner in ast.walk(node))


def _member(node: ast.stmt, note: str) -> tuple[str, str] | None:
    match node:
        case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
            default = f" = {ast.unparse(node.value)}" if node.value is not None else ""
            default = default if len(default) < 30 else ""
            return f"{name}: {ast.unparse(node.annotation)}{default}", _in_short(note)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            if name.startswith("_"):
                return None
            names = [one.id for one in node.decorator_list if isinstance(one, ast.Name)]
            if "property" in names:
                returns = f": {ast.unparse(node.returns)}" if node.returns is not None else ""
                return f"{name}{returns}", _in_short(ast.get_docstring(node))
            return _signature(node), _in_short(ast.get_docstring(node))
        case _:
            return None


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _entry(name: str, module: Module, examples: dict[str, str]) -> Iterator[str]:
    node = module.nodes[name]
    example = f" ([example](#{examples[name]}))" if name in examples else ""
    match node:
        case ast.ClassDef():
            yield f"#### `{name}`\n"
            about = _in_short(ast.get_docstring(node))
            if about or example:
                yield _wrapped(f"{about}{example}") + "\n"
            made = [_member(member, note) for member, note in module.members(node)]
            lines = [
                _wrapped(f"* `{shown}` {words}".rstrip(), "  ")
                for shown, words in filter(None, made)
            ]
            if lines:
                yield "\n".join(lines) + "\n"
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield f"#### `{name}`\n"
            yield _wrapped(f"`{_signature(node)}`") + "\n"
            yield _wrapped(f"{_in_short(ast.get_docstring(node))}{example}") + "\n"
        case ast.AnnAssign():
            yield f"#### `{name}`\n"
            value = ast.unparse(node.value) if node.value is not None else ""
            yield _wrapped(f"`{value}`{example}") + "\n"


def _kind_of(name: str, module: Module) -> str:
    node = module.nodes[name]
    bases = [base.id for base in getattr(node, "bases", ()) if isinstance(base, ast.Name)]
    module_of = nplt_client._MODULE_OF[name]
    for heading, names in _KINDS.items():
        if name in names:
            return heading
    if module_of.endswith("errors"):
        return "Error classes"
    return "Event classes" if "Event" in bases or name == "Event" else "Replies"


def examples(page: str) -> dict[str, str]:
    """For each name the anchor of the first heading whose Python example uses it."""
    found: dict[str, str] = {}
    anchor = ""
    for part in re.split(r"^(## [^\n]+|```python\n.*?^```)", page, flags=re.S | re.M):
        if part.startswith("## "):
            anchor = re.sub(r"[^\w -]", "", part[3:].strip().lower()).replace(" ", "-")
        elif part.startswith("```python"):
            for name in nplt_client.__all__:
                if re.search(rf"\b{name}\b", part):
                    found.setdefault(name, anchor)
    return found


def reference(page: str) -> str:
    modules, shown = _modules(), examples(page)
    kinds: dict[str, list[str]] = {heading: [] for heading in _KINDS}
    for name in sorted(nplt_client.__all__, key=str.lower):
        kinds.setdefault(_kind_of(name, modules[name]), []).append(name)
    lines: list[str] = []
    for heading, names in kinds.items():
        lines.append(f"### {heading}\n")
        for name in names:
            lines += _entry(name, modules[name], shown)
    return "\n".join(lines)


def updated(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{reference(before)}\n{END}{after}"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    if updated(text) != text:
        if "--write" not in sys.argv:
            sys.exit("docs/library.md: run python -m tests.documents.library_reference --write")
        PAGE.write_text(updated(text), encoding="utf-8")
