"""The database file that is served, recognised.

SQLite goes on writing to a file that was removed or replaced, and makes an empty one where
there is none: what is answered then is on no disk that the next start reads.
"""

from __future__ import annotations

import os
from pathlib import Path

from agenttx_server.engine.ports import StoreUnavailable

__all__ = ["ServedFile"]


class ServedFile:
    """Remembers which file a path named when the store was opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None

    def remember(self) -> None:
        """Take the file that is there now as the one that is served."""
        status = os.stat(self._path)
        self._identity = (status.st_dev, status.st_ino)

    def check(self) -> None:
        """Raise StoreUnavailable while the path does not name that file."""
        try:
            status = os.stat(self._path)
        except OSError as error:
            raise StoreUnavailable(
                f"the database file {self._path} can't be found: {error.strerror}"
            ) from error
        if (status.st_dev, status.st_ino) != self._identity:
            raise StoreUnavailable(
                f"the database file {self._path} was replaced while it was served; restart the server to serve "
                "the new one"
            )
