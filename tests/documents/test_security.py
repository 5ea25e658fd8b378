"""SECURITY.md names a test for each threat, and each of them exists."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from tests.documents.pages import ROOT, text_of

NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text_of("SECURITY.md"))
THREATS = text_of("SECURITY.md").split("\n## ")[2:]
"""The first section says what is trusted."""


@cache
def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_every_test_it_names_is_there(path: str, name: str) -> None:
    assert name in functions_of(path)


@pytest.mark.parametrize("threat", THREATS, ids=lambda threat: threat.splitlines()[0])
def test_every_threat_has_a_test(threat: str) -> None:
    assert "::test_" in threat
