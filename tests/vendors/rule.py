"""A rule of a vendor's API, told by a request that breaks it and one that just doesn't."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from tests.vendors.answers import ApiName
from tests.vendors.emulator import Emulator, Limits
from tests.vendors.rejections import Rejection

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    name: str
    broken: object
    kept: object
    says: str
    status: int = 400
    param: str | None = None
    code: str | None = None


def each(rules: Sequence[Rule]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rule", rules, ids=lambda rule: rule.name.replace(" ", "_"))


def assert_holds(rule: Rule, api: ApiName, *, limits: Limits | None = None, **version: Any) -> None:
    vendors = Emulator(limits=limits)
    admit: Callable[..., object] = partial(vendors.api(api).admit, **version)
    admit(rule.kept)
    with pytest.raises(Rejection) as caught:
        admit(rule.broken)
    rejection = caught.value
    assert rule.says in rejection.message
    assert rejection.status == rule.status
    assert (rejection.param, rejection.code) == (rule.param, rule.code)
