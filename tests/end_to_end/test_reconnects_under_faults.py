"""Cut lines, killed servers, crowds and switches: a few of those of `make faults`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.mid_stream import kill_in_mid_stream
from faults.one_order import talk_all_at_once
from faults.plan import Plan
from faults.resending import ask_over_faulty_network
from faults.switching import switch_to_and_fro
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def unstarted(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path / "data")
    yield server
    server.kill()


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(scratch=tmp_path, seed=2026)


def test_prompts_over_a_connection_that_drops_run_once(
    unstarted: ServerProcess, plan: Plan
) -> None:
    resent = ask_over_faulty_network(plan, unstarted, prompts=60, kills=1)
    assert resent.complaints == []
    assert len(resent.asked) == 60


def test_streamed_text_before_a_kill_equals_the_record_after_it(
    unstarted: ServerProcess, plan: Plan
) -> None:
    streams = kill_in_mid_stream(plan, unstarted, kills=3)
    assert streams.complaints == []
    assert streams.kills == 3


def test_concurrent_prompts_are_broadcast_in_the_same_order_to_all_clients(
    unstarted: ServerProcess, plan: Plan
) -> None:
    crowd = talk_all_at_once(plan, unstarted, clients=8, prompts_each=2)
    assert crowd.complaints == []
    assert len(crowd.received) == 8


def test_a_client_that_switches_conversations_gets_no_foreign_events(
    unstarted: ServerProcess, plan: Plan
) -> None:
    switches = switch_to_and_fro(plan, unstarted, count=20)
    assert switches.complaints == []
    assert switches.count == 40
