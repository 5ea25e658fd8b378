"""A check that can't fail is none: here an acknowledged line is taken out of its file.

What is left is a sound file by every rule of the format, only shorter, as if
the server had never written the line it promised, nor any after it. With
`--sabotage` this is done after every fault, and every check must say so.
"""

from __future__ import annotations

import json
from pathlib import Path

from faults.verdict import Acked


def take_out_a_line(data_dir: Path, acked: Acked) -> None:
    """The newest thing that was promised in some conversation."""
    newest = {promise.session_id: promise.seq for promise in acked.promises}
    for session_id in sorted(newest):
        seq = max(one.seq for one in acked.promises if one.session_id == session_id)
        for path in (data_dir / "history").glob(f"session_*_{session_id}.json"):
            path.write_bytes(cut_before(path.read_bytes(), seq))
            return


def cut_before(data: bytes, seq: int) -> bytes:
    """The same document without the lines from this one on."""
    header, *lines = data.split(b"\n")
    kept = lines[: seq - 1]
    if not all(line.startswith((b"{", b",{")) for line in kept):
        kept = []
    last = json.loads(kept[-1].removeprefix(b",")) if kept else json.loads(header + b"]}")
    closing = {
        "updated_at": last.get("timestamp") or last["created_at"],
        "head_seq": len(kept),
        "message_count": sum(b'"kind":"model_' in line for line in kept),
        "epoch_offset": len(header) + 1,
    }
    written = json.dumps(closing, separators=(",", ":")).encode()
    return b"\n".join([header, *kept, b"]," + written.removeprefix(b"{"), b""])
