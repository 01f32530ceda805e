"""A directory for one run: its path is short, for Unix sockets, whose paths have 107 bytes at most."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["scratch_directory"]


@contextmanager
def scratch_directory(*, keep: bool = False) -> Iterator[Path]:
    """Give a new directory; it is removed on leaving unless it is to be looked at."""
    directory = Path(tempfile.mkdtemp(prefix="agenttx-crash-"))
    try:
        yield directory
    finally:
        if keep:
            sys.stderr.write(f"kept: {directory}\n")
        else:
            shutil.rmtree(directory, ignore_errors=True)
