"""What was acknowledged survives `kill -9`: a few of the kills of `make faults`."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.kills import killed
from faults.plan import Plan
from faults.progress import Progress

pytestmark = pytest.mark.slow

KILLS = 6


def test_kills_under_load_lose_duplicate_and_reorder_nothing(tmp_path: Path) -> None:
    tally = killed(Plan(scratch=tmp_path, seed=2026), KILLS, Progress("kills", KILLS))
    assert tally.complaints == []
    assert tally.deaths == KILLS
    assert tally.promises > KILLS, "there was something to lose"


def test_the_kill_check_notices_a_line_removed_from_a_file(tmp_path: Path) -> None:
    plan = Plan(scratch=tmp_path, seed=2026, sabotage=True)
    tally = killed(plan, 4, Progress("kills", 4))
    assert any("lost" in complaint for complaint in tally.complaints)
