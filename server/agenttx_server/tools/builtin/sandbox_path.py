"""Paths inside the sandbox, as agents write them: relative, ``/`` between names, never out of it."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Final

from agenttx_server.tools.builtin.file_errors import FileFailure

__all__ = ["RESERVED_PREFIX", "SandboxPath"]

RESERVED_PREFIX: Final = ".agenttx"
"""Names of our own files in the sandbox begin so; agents neither see nor touch them."""

_LONGEST_NAME_BYTES: Final = 255
_LONGEST_PATH_BYTES: Final = 4095


@dataclass(frozen=True, slots=True)
class SandboxPath:
    """A checked path. ``names`` is empty for the sandbox's root.

    ``must_be_directory`` is a trailing slash, ``argument`` the tool's argument that gave the path.
    """

    names: tuple[str, ...]
    must_be_directory: bool
    argument: str

    @classmethod
    def parse(cls, text: str, argument: str = "path") -> SandboxPath:
        """Check a path; raise FileFailure for one that is empty, absolute, too long or leads outside."""
        if not text:
            raise FileFailure(errno.ENOENT, text, argument, "The path is empty")
        if "\x00" in text:
            raise FileFailure(errno.EINVAL, text, argument, "The path contains the character U+0000")
        outside = "Give a path inside the sandbox: relative, without '..'"
        if text.startswith("/"):
            raise FileFailure(errno.EACCES, text, argument, outside)
        names = tuple(name for name in text.split("/") if name not in ("", "."))
        if ".." in names:
            raise FileFailure(errno.EACCES, text, argument, outside)
        encoded = [len(name.encode("utf-8", "surrogatepass")) for name in names]
        if max(encoded, default=0) > _LONGEST_NAME_BYTES or sum(encoded) + len(encoded) > _LONGEST_PATH_BYTES:
            raise FileFailure(errno.ENAMETOOLONG, text, argument)
        if any(name.startswith(RESERVED_PREFIX) for name in names):
            raise FileFailure(
                errno.EPERM, text, argument, f"Names beginning with {RESERVED_PREFIX} are kept for the server"
            )
        return cls(names, text.endswith(("/", "/.")), argument)

    @property
    def name(self) -> str:
        """The last name."""
        return self.names[-1]

    @property
    def parent(self) -> SandboxPath:
        """The directory it is in."""
        return SandboxPath(self.names[:-1], True, self.argument)

    def contains(self, other: SandboxPath) -> bool:
        """Whether the other path is this one or below it."""
        return other.names[: len(self.names)] == self.names

    def failure(self, code: int, advice: str = "") -> FileFailure:
        """Return a failure of this path."""
        return FileFailure(code, str(self), self.argument, advice)

    def __str__(self) -> str:
        return "/".join(self.names) or "."
