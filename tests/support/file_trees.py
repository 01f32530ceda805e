"""Directory trees in tests: made from a description, and told apart to the last bit."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

Entry = tuple[str, int, bytes]
"""Kind (file, directory, link, special), permission bits, content or target."""


_ACCOUNTS = (".agenttx-database", ".agenttx-claims.db")


def snapshot(root: Path) -> dict[str, Entry]:
    """Everything below a directory, hidden files included; links are not followed.

    Left out is what the server keeps account in: whose the directory is, and which paths are claimed.
    """
    found: dict[str, Entry] = {}
    for directory, directories, files in os.walk(root):
        for name in directories + files:
            path = Path(directory, name)
            if name.startswith(_ACCOUNTS):
                continue
            found[path.relative_to(root).as_posix()] = _entry(path)
    return found


def _entry(path: Path) -> Entry:
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return "link", 0, os.fsencode(os.readlink(path))
    if stat.S_ISDIR(status.st_mode):
        return "directory", mode, b""
    if stat.S_ISREG(status.st_mode):
        return "file", mode, path.read_bytes()
    return "special", mode, b""


def make_tree(root: Path, contents: Mapping[str, bytes | None], mode: int = 0o644) -> None:
    """Make files (a content) and directories (None) below a directory."""
    for name, content in contents.items():
        path = root / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(mode)
