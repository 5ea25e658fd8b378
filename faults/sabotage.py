"""Removes an acknowledged line, so that each check can be seen to fail.

What is left is a valid file, only shorter, as if the server had never written the line it
acknowledged, nor any after it. With `--sabotage` this is done after every fault, and every check
must report it.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from faults.comparison import Acked


def take_out_a_line(data_dir: Path, acked: Acked) -> None:
    """Removes the newest acknowledged prompt of some conversation and all that came after it. An
    answer alone would not do: its prompt would run again and get the same answer."""
    prompts = [promise for promise in acked.promises if promise.kind == "prompt"]
    for session_id in sorted({promise.session_id for promise in prompts}):
        seq = max(one.seq for one in prompts if one.session_id == session_id)
        for path in (data_dir / "history").glob(f"session_*_{session_id}.json"):
            path.write_bytes(cut_before(path.read_bytes(), seq))
            return


def cut_before(data: bytes, seq: int) -> bytes:
    """The document without the lines from this one on."""
    header, *lines = data.split(b"\n")
    kept = lines[: seq - 1]
    if not all(line.startswith((b"{", b",{")) for line in kept):
        kept = []
    return _document(header, kept)


def take_out_results(data_dir: Path) -> None:
    """Removes one line with the results of tools; those after it move up."""
    for path in sorted((data_dir / "history").glob("session_*.json")):
        header, *lines = path.read_bytes().split(b"\n")
        entries = [line.removeprefix(b",") for line in lines if line.startswith((b"{", b",{"))]
        for place, line in enumerate(entries):
            if b'"kind":"tool_results"' in line:
                moved = [_renumbered(later) for later in entries[place + 1 :]]
                kept = [*entries[:place], *moved]
                path.write_bytes(_document(header, [kept[0], *(b"," + one for one in kept[1:])]))
                return


def _renumbered(line: bytes) -> bytes:
    """The line with the sequence number before its own; the checksum covers the bytes before it."""
    number, rest = line.removeprefix(b'{"seq":').split(b",", 1)
    body = b'{"seq":%d,%b' % (int(number) - 1, rest.rsplit(b',"crc":"', 1)[0])
    return b'%b,"crc":"%08x"}' % (body, zlib.crc32(body))


def _document(header: bytes, kept: list[bytes]) -> bytes:
    last = json.loads(kept[-1].removeprefix(b",")) if kept else json.loads(header + b"]}")
    closing = {
        "updated_at": last.get("timestamp") or last["created_at"],
        "head_seq": len(kept),
        "message_count": sum(b'"kind":"model_' in line for line in kept),
        "epoch_offset": len(header) + 1,
    }
    written = json.dumps(closing, separators=(",", ":")).encode()
    return b"\n".join([header, *kept, b"]," + written.removeprefix(b"{"), b""])
