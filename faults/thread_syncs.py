"""`python -m faults.thread_syncs …`: the server as on a system without asynchronous I/O.

Its syncs are calls of threads then, which strace can see, fail and lie about.
"""

from __future__ import annotations

import sys

from nplt_server.cli import main
from nplt_storage.files.commit_threads import KernelSync


def _not_here(cls: type[KernelSync]) -> None:
    return None


if __name__ == "__main__":
    KernelSync.start = classmethod(_not_here)  # type: ignore[assignment]
    sys.exit(main())
