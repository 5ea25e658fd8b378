"""A tenth of the corpus of damaged directories; `python -m faults DAMAGE` tries all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.damage import check_case, limited_fork_server
from faults.damaged_directories import Case, Original, all_cases, make_original
from tests.support.fork_server import ForkServer

CASES = all_cases()


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with limited_fork_server() as forks:
        yield forks


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return make_original(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("case", CASES[::10], ids=str)
def test_damage_costs_what_is_damaged_and_little_memory(
    case: Case, original: Original, forks: ForkServer, tmp_path: Path
) -> None:
    assert check_case(case, original, forks, tmp_path) == []


def test_the_check_notices_a_sound_entry_that_is_not_there(
    original: Original, forks: ForkServer, tmp_path: Path
) -> None:
    assert check_case(CASES[0], original, forks, tmp_path, sabotage=True)


def test_every_part_is_harmed_in_every_way() -> None:
    assert {case.part for case in CASES} == {"history", "blob", "live", "index", "trash"}
    places = {case.place for case in CASES if case.part == "history" and not case.is_thing}
    assert places == {"first", "middle", "last", "closing"}
    assert len(CASES) == len(set(CASES)) > 140
