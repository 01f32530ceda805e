"""Failures of the ``fs.*`` tools in POSIX's words: ``[Errno 2] No such file or directory: 'a/b.txt'``.

The key of a failure is the argument that named the path, so that it is traced to the step
that the path came from.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from agenttx_server.engine.ports import ToolFailure
from agenttx_server.engine.records import HintCategory
from agenttx_server.tools.builtin.wording import shown

__all__ = ["FileFailure", "changed_meanwhile", "failing_as"]

_CATEGORIES: Final = {
    errno.ENOENT: HintCategory.FILE_NOT_FOUND,
    errno.EACCES: HintCategory.PERMISSION_DENIED,
    errno.EPERM: HintCategory.PERMISSION_DENIED,
    errno.EROFS: HintCategory.PERMISSION_DENIED,
    errno.EEXIST: HintCategory.CONFLICT,
    errno.ENOTEMPTY: HintCategory.CONFLICT,
    errno.EBUSY: HintCategory.CONFLICT,
    errno.EISDIR: HintCategory.INVALID_VALUE,
    errno.ENOTDIR: HintCategory.INVALID_VALUE,
    errno.EINVAL: HintCategory.INVALID_VALUE,
    errno.ELOOP: HintCategory.INVALID_VALUE,
    errno.EMLINK: HintCategory.INVALID_VALUE,
    errno.EXDEV: HintCategory.INVALID_VALUE,
    errno.ENAMETOOLONG: HintCategory.INVALID_VALUE,
    errno.EILSEQ: HintCategory.INVALID_VALUE,
    errno.EFBIG: HintCategory.RESOURCE_EXHAUSTED,
    errno.ENOSPC: HintCategory.RESOURCE_EXHAUSTED,
    errno.EDQUOT: HintCategory.RESOURCE_EXHAUSTED,
    errno.EMFILE: HintCategory.RESOURCE_EXHAUSTED,
    errno.ENFILE: HintCategory.RESOURCE_EXHAUSTED,
    errno.ENOMEM: HintCategory.RESOURCE_EXHAUSTED,
}

_ADVICE: Final = {
    errno.ENOENT: "Check the path with fs.list, or write the file first",
    errno.EEXIST: "Use another path, or delete it first",
    errno.ENOTEMPTY: "Delete what is in it first",
    errno.EISDIR: "Give the path of a file",
    errno.ENOTDIR: "A part of the path is a file. Give a path whose parents are directories",
    errno.ELOOP: "Symbolic links are not followed. Give the path of the file itself",
    errno.ENAMETOOLONG: "Use a shorter path",
    errno.EXDEV: "Write the file there and delete the old one",
}


class FileFailure(ToolFailure):
    """What went wrong with a path; ``errno`` as POSIX numbers it."""

    def __init__(self, code: int, path: str, argument: str = "path", advice: str = "") -> None:
        advice = advice or _ADVICE.get(code, "")
        text = f"[Errno {code}] {os.strerror(code)}: {shown(path)}"
        super().__init__(
            _CATEGORIES.get(code, HintCategory.UNKNOWN), f"{text}. {advice}" if advice else text, (argument,)
        )
        self.errno = code


@contextmanager
def failing_as(path: str, argument: str = "path") -> Iterator[None]:
    """Turn an OSError of the block into a FileFailure that names the sandbox's path, not the system's."""
    try:
        yield
    except OSError as error:
        raise FileFailure(error.errno or errno.EIO, path, argument) from error


def changed_meanwhile(path: str, argument: str = "path") -> ToolFailure:
    """Return the failure of a change that met another one of the same path."""
    return ToolFailure(
        HintCategory.CONFLICT,
        f"{shown(path)} was changed by someone else at the same moment. Look at it again, then retry",
        (argument,),
    )
