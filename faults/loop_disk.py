"""A disk whose power can be cut: an ext4 image on a loop device.

FS_IOC_SHUTDOWN stops the file system at once: from then on no write reaches the image, and what was
only in memory is lost at the unmount. Mounting it again replays the journal, as a machine does
after a power cut. It can't simulate a disk that tears a sector. Needs root.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from types import TracebackType

from faults.results import CannotBeDone

_FS_IOC_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSHING_THE_LOG = 2
_IMAGE_BYTES = 512 * 1024 * 1024
"""A sparse file: it takes only what is written to it."""
_BUSY_SECONDS_MAX = 20.0


class DiskFailed(Exception):
    """mount, umount or mkfs failed, not the file system under test."""


class LoopDisk:
    def __init__(self, directory: Path) -> None:
        self._image = directory / "disk.img"
        self.path = directory / "disk"

    def __enter__(self) -> LoopDisk:
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(_IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self.mount()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.path.is_mount():
            self.unmount()
        self._image.unlink()

    def mount(self) -> None:
        _run("mount", "-t", "ext4", "-o", "loop", str(self._image), str(self.path))

    def unmount(self) -> None:
        """A process that watches (a tracer, an indexer) may keep it busy for a moment."""
        deadline = time.monotonic() + _BUSY_SECONDS_MAX
        while True:
            try:
                return _run("umount", str(self.path))
            except DiskFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def cut(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            flag = struct.pack("I", _WITHOUT_FLUSHING_THE_LOG)
            fcntl.ioctl(descriptor, _FS_IOC_SHUTDOWN, flag)
        finally:
            os.close(descriptor)


def check_loop_disks() -> None:
    if os.geteuid() != 0:
        raise CannotBeDone("needs root, to mount an ext4 image on a loop device")
    if missing := [name for name in ("mkfs.ext4", "mount") if shutil.which(name) is None]:
        raise CannotBeDone(f"needs {', '.join(missing)}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DiskFailed(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
