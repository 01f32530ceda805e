"""Says which database a directory belongs to, in a file in it.

What stands in the sandbox, and what undo restores it from, is known to one database only. A server
that took another one's directories would undo what is not there, or miss what is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from agenttx_server.tools.builtin.sandbox_path import RESERVED_PREFIX

__all__ = ["MARKER_NAME", "check_marker"]

MARKER_NAME: Final = f"{RESERVED_PREFIX}-database"
_LONGEST_ID: Final = 200


def check_marker(directory: Path, what: str, database_id: str, *, may_write: bool) -> None:
    """Make sure that a directory belongs to a database; ``what`` is the setting that names it.

    A missing marker is written if ``may_write``. Raises ValueError, in one line, if it must not be, or if
    the marker is another database's.
    """
    path = directory / MARKER_NAME
    try:
        found = _read(path)
        if found is None and may_write:
            found = _write(path, database_id)
    except OSError as error:
        raise ValueError(f"can't use the marker {path} of {what}: {error.strerror}") from error
    if found is None:
        raise ValueError(
            f"{what} {directory} has no marker of this database ({database_id}), which other servers may share: "
            "if all of them see this directory, start one of them with fs_adopt"
        )
    if found != database_id:
        raise ValueError(
            f"{what} {directory} belongs to database {found!r}, and this server's is {database_id!r}: "
            f"give another directory, or, if no server of that database uses it any more, remove {path}"
        )


def _read(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_LONGEST_ID).strip()
    except FileNotFoundError:
        return None


def _write(path: Path, database_id: str) -> str:
    """Write the marker whole and durably, unless somebody else does so first; return what it says."""
    temporary = path.with_name(f"{path.name}-{os.getpid()}.tmp")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, f"{database_id}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
    try:
        os.link(temporary, path)  # fails where a rename would replace
    except FileExistsError:
        pass
    finally:
        os.unlink(temporary)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return _read(path) or ""
