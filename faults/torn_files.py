"""P6: a torn end is cut off and kept aside; damage elsewhere sets that one conversation apart;
lists still show all.

A file of 1,000 messages is cut at every byte of its last lines, around the end of every line and at
many bytes in between, and bits of it are flipped. Hundreds of such files are in one directory, and
the server is asked for each; then the storage package is called at every single byte. Syncs play no
part here, so the files are in memory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

from tests.support.fork_server import ForkServer

from faults.clients import Finished, NotGranted, Talker
from faults.every_byte import every_byte
from faults.flipped_bits import flipped_bits
from faults.plan import Plan, memory_directory
from faults.progress import Progress
from faults.promises import Promises
from faults.results import Promised, Result
from faults.sample_conversation import Sample, empty_data_dir, make_sample, place
from faults.serving import ForkedServer, clean_environment
from faults.stored import settled_bytes

_BATCH = 100
_LANES = 2
_PROMPT_STRIDE = 61
"""After every this many cuts the conversation also gets a prompt, which reads it whole."""


def torn_files(plan: Plan) -> list[Result]:
    with memory_directory(plan) as directory, ForkServer(clean_environment()) as fork_server:
        sample = make_sample(fork_server, directory)
        results = [
            _cut_files(plan, sample, directory),
            flipped_bits(plan, sample, directory, fork_server),
        ]
        return results if plan.quick else [*results, every_byte(plan, sample, directory)]


def _cut_files(plan: Plan, sample: Sample, directory: Path) -> Result:
    cuts = _cuts(plan, sample)
    batches = list(_in_batches(cuts))
    progress = Progress("P6 cut files", len(cuts))
    with ThreadPoolExecutor(_LANES) as lanes:
        try_one = partial(_lane, plan, sample, directory, progress)
        found_faults = lanes.map(try_one, (batches[lane::_LANES] for lane in range(_LANES)))
        complaints = [one for lane in found_faults for one in lane]
    progress.end()
    promised = Promised(number="P6", what="a file cut anywhere")
    return promised.judged(complaints, f"{len(cuts):,} cuts of {len(sample.data):,} bytes")


def _cuts(plan: Plan, sample: Sample) -> Sequence[int]:
    """The places to cut. A file without its closing line is counted again from its lines, so each
    cut costs the reading of a whole file."""
    size = len(sample.data)
    tail = sample.ends[-2 if plan.quick else -8]
    ends = sample.ends[:: 50 if plan.quick else 4]
    near_ends = {end + by for end in ends for by in (-1, 0, 1)}
    stride = 1_009 if plan.quick else 307
    return sorted(near_ends | {*range(0, size, stride), *range(tail, size + 1)})


def _in_batches(cuts: Iterable[int]) -> Iterable[list[int]]:
    rest = iter(cuts)
    while batch := list(islice(rest, _BATCH)):
        yield batch


def _lane(
    plan: Plan,
    sample: Sample,
    directory: Path,
    progress: Progress,
    batches: Sequence[Sequence[int]],
) -> list[str]:
    complaints: list[str] = []
    with ForkServer(clean_environment()) as fork_server:
        for batch in batches:
            data_dir = empty_data_dir(directory / f"cuts-{batch[0]}")
            for cut in batch:
                session_id, data = sample.copy(cut)
                place(data_dir, session_id, _torn(sample, data, cut, sabotage=plan.sabotage))
            with ForkedServer(fork_server, data_dir) as server:
                server.start()
                with Talker(server.port, Promises()) as talker:
                    complaints += _try_all(talker, sample, data_dir, batch, progress)
            shutil.rmtree(data_dir)
    return complaints


def _torn(sample: Sample, data: bytes, cut: int, *, sabotage: bool) -> bytes:
    whole = sample.whole_lines(cut)
    if sabotage and whole > 0:
        return data[: sample.ends[whole - 1]] + data[sample.ends[whole] : cut]
    return data[:cut]


def _try_all(
    talker: Talker,
    sample: Sample,
    data_dir: Path,
    batch: Sequence[int],
    progress: Progress,
) -> list[str]:
    complaints = talker.rows_missing(len(batch))
    for cut in batch:
        try:
            found_faults = _try_one(talker, sample, data_dir, cut)
        except NotGranted as refusal:
            found_faults = [f"can't be used: {refusal}"]
        complaints += [f"cut at byte {cut}: {one}" for one in found_faults]
        progress.step(f"{len(complaints)} complaints in this batch")
    return complaints + talker.rows_missing(len(batch))


def _try_one(talker: Talker, sample: Sample, data_dir: Path, cut: int) -> list[str]:
    session_id, data = sample.copy(cut)
    path = data_dir / "history" / f"session_20260101_{session_id}.json"
    whole = sample.whole_lines(cut)
    if whole < 0:
        return _is_set_apart(talker, session_id, path, data[:cut])
    page = talker.page(session_id, view="entries", limit=1, before=whole + 1)
    if page["head_seq"] < whole or [one["seq"] for one in page["messages"]] != [whole][:whole]:
        return [f"{whole} lines were whole, {page['head_seq']} are left"]
    kept, torn = data[: sample.ends[whole]], data[sample.ends[whole] : cut]
    complaints = _is_made_whole(path, kept)
    aside = [broken.read_bytes() for broken in path.parent.glob(f"{path.name}.broken-*")]
    if cut < len(data) and aside != ([torn] if torn else []):
        complaints.append(f"{len(torn)} torn bytes are not kept aside as they were")
    if cut % _PROMPT_STRIDE == 0:
        complaints += _goes_on(talker, session_id, path, kept)
    return complaints


def _is_set_apart(talker: Talker, session_id: str, path: Path, data: bytes) -> list[str]:
    try:
        talker.page(session_id, view="entries", limit=1)
    except NotGranted:
        return [] if path.read_bytes() == data else ["a damaged file was changed"]
    return ["a file without a header was answered from"]


def _is_made_whole(path: Path, kept: bytes) -> list[str]:
    now = settled_bytes(path)
    if not now.startswith(kept):
        return ["a line before the cut was changed"]
    try:
        added = json.loads(b'{"messages":[' + now[len(kept) :].removeprefix(b","))["messages"]
    except ValueError:
        return ["what follows the last whole line makes no document of it"]
    # A turn whose answer was cut off ends as interrupted when a client attaches.
    kinds = [entry["kind"] for entry in added]
    return [] if kinds in ([], ["fault"]) else [f"entries were added that no client sent: {kinds}"]


def _goes_on(talker: Talker, session_id: str, path: Path, kept: bytes) -> list[str]:
    talker.attach(session_id)
    outcome = talker.ask()
    if not isinstance(outcome, Finished) or outcome.state != "completed":
        return [f"it does not go on: {outcome}"]
    now = settled_bytes(path)
    messages = json.loads(now)["messages"]
    found_faults = [message for message in messages if message.get("turn_id") == outcome.turn_id]
    if not now.startswith(kept) or len(found_faults) != 2:
        return ["what was said next is not where it should be"]
    return []
