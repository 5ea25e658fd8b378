"""Deleting a conversation: a move, not an end.

    trash/session_YYYYMMDD_<id>.json    and what was kept beside it
    trash/files_<id>/                   its attachments

The conversation's file goes first: with it the conversation is gone, in one
step. Nothing in the trash is ever overwritten.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

from nplt_storage.data_directory import DataDirectory
from nplt_storage.errors import ConversationNotFound, StorageUnavailable
from nplt_storage.file_operations import FileOperations


def move_to_trash(
    files: FileOperations, directory: DataDirectory, path: Path, session_id: str
) -> None:
    try:
        _move(files, path, directory.trash / path.name)
        for beside in sorted(path.parent.glob(f"{path.name}.*")):
            _move(files, beside, directory.trash / beside.name)
        attachments = directory.files / session_id
        if attachments.is_dir():
            _move(files, attachments, directory.trash / f"files_{session_id}")
            files.sync_directory(directory.files)
        files.sync_directory(directory.trash)
        files.sync_directory(path.parent)
    except FileNotFoundError as error:
        raise ConversationNotFound(session_id) from error
    except OSError as error:
        raise StorageUnavailable(f"it can't be moved to the trash: {error.strerror}") from error


def _move(files: FileOperations, source: Path, target: Path) -> None:
    for number in count(2):
        if not target.exists():
            files.rename(source, target)
            return
        target = target.with_name(f"{target.name.split('~')[0]}~{number}")
