"""Rename without replacing: ``renameat2`` with RENAME_NOREPLACE, which Python's ``os`` lacks.

A check before ``os.rename`` would leave a moment in which a file that somebody just made is
replaced and lost. Where the C library or the file system can't do it, that check is all there is.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable
from typing import Any, Final

__all__ = ["rename_exclusively"]

_NOREPLACE: Final = 1
_NOT_SUPPORTED: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def rename_exclusively(name: str, descriptor: int, new_name: str, new_descriptor: int) -> None:
    """Rename between two open directories; raise FileExistsError if the new name is taken."""
    renameat2 = _renameat2()
    if renameat2 is not None:
        if renameat2(descriptor, os.fsencode(name), new_descriptor, os.fsencode(new_name), _NOREPLACE) == 0:
            return
        code = ctypes.get_errno()
        if code not in _NOT_SUPPORTED:
            raise OSError(code, os.strerror(code), new_name)
    try:
        os.lstat(new_name, dir_fd=new_descriptor)
    except FileNotFoundError:
        os.rename(name, new_name, src_dir_fd=descriptor, dst_dir_fd=new_descriptor)
    else:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new_name)


@functools.cache
def _renameat2() -> Callable[..., Any] | None:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function.restype = ctypes.c_int
    result: Callable[..., Any] = function
    return result
