"""P6, without a server: a file of 1,000 messages is cut at every byte.

The storage package is called directly, a third of a million times, by one process per processor.
After each cut the file is opened as a server would: every line before the cut is there byte for
byte, the torn rest is kept beside the file, and one more entry can be appended and read back.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from faults.plan import Plan
from faults.progress import Progress
from faults.results import Promised, Result
from faults.sample_conversation import Sample, place
from nplt_storage.entries import DebugEntry
from nplt_storage.errors import ConversationDamaged, StorageError
from nplt_storage.file_system import FileOperations
from nplt_storage.files.append import Appender
from nplt_storage.files.conversation_file import JsonFile

_SHARE = 500
_PARSED_STRIDE = 101
"""After every this many cuts the whole document is parsed too, which takes the longest."""
_NEXT = DebugEntry(
    id="next", timestamp=datetime(2026, 1, 1, tzinfo=UTC), category="faults", content="next"
)


def every_byte(plan: Plan, sample: Sample, directory: Path) -> Result:
    cuts = range(len(sample.data) + 1)
    shares = [cuts[start : start + _SHARE] for start in range(0, len(cuts), _SHARE)]
    progress = Progress("P6 every byte", len(cuts))
    complaints: list[str] = []
    with ProcessPoolExecutor() as processes:
        try_share = partial(_try_share, sample, directory, plan.sabotage)
        for share, complaint in zip(shares, processes.map(try_share, shares), strict=True):
            complaints += complaint
            for _ in share:
                progress.step(f"{len(complaints)} complaints")
    progress.end()
    promised = Promised(number="P6", what="a file cut at every byte")
    return promised.judged(complaints, f"{len(cuts):,} cuts")


def _try_share(sample: Sample, directory: Path, sabotage: bool, cuts: Sequence[int]) -> list[str]:
    logging.disable(logging.WARNING)  # each cut is kept aside and logged
    data_dir = directory / f"bytes-{os.getpid()}"
    (data_dir / "history").mkdir(parents=True, exist_ok=True)
    path = place(data_dir, sample.session_id, sample.data)
    complaints: list[str] = []
    for cut in cuts:
        data = sample.data[:cut]
        whole = sample.whole_lines(cut)
        if sabotage and whole > 0:
            data = data[: sample.ends[whole - 1]] + data[sample.ends[whole] :]
        path.write_bytes(data)
        complaints += [
            f"cut at byte {cut}: {complaint}" for complaint in _try_one(path, sample, cut)
        ]
    return complaints


def _try_one(path: Path, sample: Sample, cut: int) -> Iterator[str]:
    whole = sample.whole_lines(cut)
    file = JsonFile(path, sample.session_id, files=FileOperations(), new_id=lambda: "new")
    try:
        appender = Appender(file, file.open_for_appending())
    except ConversationDamaged as damage:
        if whole >= 0:
            yield f"it is called damaged: {damage}"
        elif path.read_bytes() != sample.data[:cut]:
            yield "a damaged file was changed"
        return
    entry = replace(_NEXT, seq=whole + 1)
    try:
        appender.append(entry)
    except StorageError as error:
        yield f"it does not go on: {error}"
        return
    finally:
        appender.close()
    kept = sample.data[: sample.ends[whole]]
    now = path.read_bytes()
    if not now.startswith(kept):
        yield "a line before the cut was changed"
    with file.reading() as source:
        if source.head_seq != whole + 1 or list(source.after(whole)) != [entry]:
            yield "what was appended can't be read back"
    if cut % _PARSED_STRIDE == 0 and len(json.loads(now)["messages"]) != whole + 1:
        yield "the document holds something else"
    yield from _kept_aside(path, sample.data[sample.ends[whole] : cut], cut, sample)


def _kept_aside(path: Path, torn: bytes, cut: int, sample: Sample) -> Iterator[str]:
    aside = sorted(path.parent.glob(f"{path.name}.broken-*"))
    found = [broken.read_bytes() for broken in aside]
    if cut < len(sample.data) and found != ([torn] if torn else []):
        yield f"{len(torn)} torn bytes are not kept aside as they were"
    for broken in aside:
        broken.unlink()
