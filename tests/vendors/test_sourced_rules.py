"""Every refusal is a row with an address and a quote."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.vendors.anthropic_rules import ANTHROPIC
from tests.vendors.local_servers import PRESETS
from tests.vendors.openai_rules import OPENAI
from tests.vendors.sourced_rules import SourcedRule

HERE = Path(__file__).parent


def every_rule() -> Iterator[SourcedRule]:
    yield from (*OPENAI.values(), *ANTHROPIC.values())
    for preset in PRESETS:
        yield from preset.rules
        if preset.needs_key is not None:
            yield preset.needs_key


RULES = list({rule.id: rule for rule in every_rule()}.values())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_has_an_address_and_a_quote_with_its_words(rule: SourcedRule) -> None:
    assert rule.checks
    check_source(rule)


def check_source(rule: SourcedRule) -> None:
    assert re.fullmatch(r"https://\S+", rule.source)
    assert rule.quote
    assert rule.quotes_message() is not rule.is_documented_only


def test_few_rules_are_documented_without_the_words_of_the_refusal() -> None:
    assert {rule.id for rule in RULES if rule.is_documented_only} == {
        "anthropic-limit",
        "anthropic-no-format",
        "anthropic-format-enum",
        "anthropic-format-type",
        "anthropic-format-reference",
    }


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(HERE.glob("*.py")):
        if not path.name.startswith("test_"):
            yield path.name, ast.parse(path.read_text())


def test_nothing_is_refused_but_by_a_rule() -> None:
    made = {
        name
        for name, module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Rejection"
    }
    # The APIs' own failures (429, 500) are told by `failure`, which no request brings about.
    assert made == {"sourced_rules.py", "openai_api.py", "anthropic_api.py"}


def test_every_rule_is_used() -> None:
    named = {
        node.value
        for name, module in modules()
        if name not in ("openai_rules.py", "anthropic_rules.py")
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {*OPENAI, *ANTHROPIC} - named == set()


@pytest.mark.parametrize("without", [{"source": ""}, {"quote": ""}, {"quote": "other words"}])
def test_a_rule_without_an_address_or_its_words_is_found(without: dict[str, Any]) -> None:
    sound = SourcedRule(
        id="x", checks="x", message="no {y} here", source="https://x", quote="no z here"
    )
    check_source(sound)
    with pytest.raises(AssertionError):
        check_source(replace(sound, **without))
