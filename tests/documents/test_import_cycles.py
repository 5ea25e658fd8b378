"""References point down: no module refers to one that refers back to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.documents.import_graph import cycles, describe, read_references
from tests.documents.pages import ROOT

PACKAGES = ("protocol", "storage", "server", "client", "gateway")

REFERENCES = read_references(ROOT / name for name in PACKAGES)
CYCLES = cycles(REFERENCES)


def test_no_modules_refer_to_each_other() -> None:
    assert not CYCLES, "\n" + "\n\n".join(describe(cycle, REFERENCES) for cycle in CYCLES)


def test_the_modules_of_all_packages_are_read() -> None:
    for name in PACKAGES:
        files = list((ROOT / name / f"nplt_{name}").rglob("*.py"))
        read = [module for module in REFERENCES if module.partition(".")[0] == f"nplt_{name}"]
        assert len(read) == len(files) > 10


def write_package(folder: Path, files: dict[str, str]) -> None:
    for name, text in {"__init__": "", **files}.items():
        file = folder / "pkg" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


LOW_IS_IMPORTED = "from pkg.low import Low\n"


@pytest.mark.parametrize(
    "low",
    [
        "from pkg.high import High",
        "import pkg.high",
        "from pkg import high",
        "from . import high",
        "from .high import High",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.high import High",
        "def late():\n    from pkg.high import High",
        "class Low:\n    async def late(self):\n        import pkg.high as above",
        "import pkg\ndef take(high: 'pkg.high.High'): ...",
        "import pkg\ndef give() -> 'list[pkg.high.High] | None': ...",
        "import pkg\nclass Low:\n    above: 'pkg.high.High'",
        "import pkg as p\ndef take(high: p.high.High): ...",
        "import pkg\nAbove: TypeAlias = 'pkg.high.High'",
        "import pkg\nfrom typing import cast\nhigh = cast('pkg.high.High', None)",
        "from importlib import import_module\nhigh = import_module('pkg.high')",
    ],
)
def test_a_reference_back_makes_a_cycle(tmp_path: Path, low: str) -> None:
    write_package(tmp_path, {"low": low, "high": LOW_IS_IMPORTED})
    assert {"pkg.low", "pkg.high"} in cycles(read_references([tmp_path]))


@pytest.mark.parametrize(
    "low",
    [
        "",
        "import pkg",
        "from elsewhere.high import High",
        "high = 'pkg.high.High'",
        "def take(high: 'Literal[\"pkg.high\"]'): ...",
        "'''See pkg.high.'''",
    ],
)
def test_what_is_no_reference_makes_no_cycle(tmp_path: Path, low: str) -> None:
    write_package(tmp_path, {"low": low, "high": LOW_IS_IMPORTED})
    assert cycles(read_references([tmp_path])) == []


def test_a_package_whose_init_imports_a_module_that_imports_a_name_of_it_is_a_cycle(
    tmp_path: Path,
) -> None:
    files = {"__init__": "from pkg.low import Low\nname = 1", "low": "from pkg import name"}
    write_package(tmp_path, files)
    assert cycles(read_references([tmp_path])) == [{"pkg", "pkg.low"}]


def test_a_package_whose_init_imports_a_module_that_imports_its_sibling_is_no_cycle(
    tmp_path: Path,
) -> None:
    files = {"__init__": "from pkg.high import High", "high": "from pkg import low", "low": ""}
    write_package(tmp_path, files)
    assert cycles(read_references([tmp_path])) == []


def test_a_relative_import_in_an_init_starts_at_its_own_package(tmp_path: Path) -> None:
    files = {"part/__init__": "from .low import Low", "part/low": "from .. import part"}
    write_package(tmp_path, files)
    assert cycles(read_references([tmp_path])) == [{"pkg.part", "pkg.part.low"}]


def test_a_cycle_of_three_is_one_component_and_each_of_its_references_is_reported(
    tmp_path: Path,
) -> None:
    files = {
        "a": "from pkg.b import B",
        "b": "\ndef late():\n    from pkg.c import C",
        "c": "from pkg.a import A\nfrom pkg.aside import D",
        "aside": "",
    }
    write_package(tmp_path, files)
    references = read_references([tmp_path])
    (cycle,) = cycles(references)
    assert describe(cycle, references).splitlines() == [
        "These 3 modules refer to each other:",
        "  pkg.a:1 refers to pkg.b",
        "  pkg.b:3 refers to pkg.c",
        "  pkg.c:1 refers to pkg.a",
    ]


def test_two_cycles_that_only_refer_one_way_are_two_components(tmp_path: Path) -> None:
    files = {
        "a": "import pkg.b",
        "b": "import pkg.a, pkg.c",
        "c": "import pkg.d",
        "d": "import pkg.c",
    }
    write_package(tmp_path, files)
    found = cycles(read_references([tmp_path]))
    assert sorted(map(sorted, found)) == [["pkg.a", "pkg.b"], ["pkg.c", "pkg.d"]]
