"""P6, second half: a flipped bit is detected, never read as content, and affects one conversation
at most.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.fork_server import ForkServer

from faults.clients import NotGranted, Talker
from faults.plan import Plan
from faults.progress import Progress
from faults.promises import Promises
from faults.results import Promised, Result
from faults.sample_conversation import Sample, empty_data_dir, place
from faults.serving import ForkedServer

_BATCH = 200


def flipped_bits(plan: Plan, sample: Sample, directory: Path, forks: ForkServer) -> Result:
    count = 200 if plan.quick else 1_000
    chance = plan.chance("flips")
    progress = Progress("P6 flipped bits", count)
    complaints: list[str] = []
    outcomes = {"set apart": 0, "whole": 0, "without its last line": 0}
    for batch in range(count // _BATCH):
        data_dir = empty_data_dir(directory / f"flips-{batch}")
        bits = [_bit(sample, number, chance.random()) for number in range(_BATCH)]
        for number, bit in enumerate(bits):
            session_id, data = sample.copy(number)
            place(data_dir, session_id, _flipped(data, bit))
        with ForkedServer(forks, data_dir) as server:
            server.start()
            with Talker(server.port, Promises()) as talker:
                for number, bit in enumerate(bits):
                    outcome = _try_one(talker, sample, data_dir, number, bit)
                    progress.step()
                    if outcome in outcomes:
                        outcomes[outcome] += 1
                    else:
                        complaints.append(f"bit {bit % 8} of byte {bit // 8}: {outcome}")
                complaints += talker.rows_missing(_BATCH)
        shutil.rmtree(data_dir)
    progress.end()
    complaints += [f"no file was ever {name}" for name, times in outcomes.items() if not times]
    if plan.sabotage:
        complaints += _believes_a_lie(sample)
    today = ", ".join(f"{times:,} {name}" for name, times in outcomes.items())
    return Promised(number="P6", what="flipped bits").judged(complaints, today)


def _bit(sample: Sample, number: int, chance: float) -> int:
    """Half of the bits are anywhere, half near the end, where damage looks like a torn append."""
    first = 0 if number % 2 else sample.last_line
    return (first + int(chance * (len(sample.data) - first))) * 8 + number % 8


def _flipped(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def _try_one(talker: Talker, sample: Sample, data_dir: Path, number: int, bit: int) -> str:
    """Returns one of the outcomes, or the error."""
    session_id, data = sample.copy(number)
    path = data_dir / "history" / f"session_20260101_{session_id}.json"
    try:
        talker.attach(session_id)
    except NotGranted:
        is_untouched = path.read_bytes() == _flipped(data, bit)
        return "set apart" if is_untouched else "a damaged file was changed"
    return judged(sample, data, path.read_bytes(), bit)


def judged(sample: Sample, data: bytes, now: bytes, bit: int) -> str:
    """Compares a file that was opened. Its header may be read leniently, its lines never."""
    first = sample.ends[0]
    lines, lines_now = data[first : sample.ends[-1]], now[now.index(b"\n") + 1 :]
    if lines_now.startswith(lines):
        is_in_a_line = first <= bit // 8 < sample.ends[-1]
        return "a flipped bit was mended by nobody knows whom" if is_in_a_line else "whole"
    if bit // 8 < sample.last_line:
        return "a line before the last is not what it was, and it was opened"
    kept = data[first : sample.last_line]
    return "without its last line" if lines_now.startswith(kept) else "lines were lost"


def _believes_a_lie(sample: Sample) -> list[str]:
    """Pretends that a line with a flipped bit was read as content."""
    bit = sample.ends[1] * 8
    outcome = judged(sample, sample.data, _flipped(sample.data, bit), bit)
    return [outcome] if outcome != "whole" else []
