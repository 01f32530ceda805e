"""What the process's exit code says; above 2 they are those of ``sysexits.h``."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode"]


class ExitCode(IntEnum):
    """Why the command ended as it did."""

    OK = 0
    """It did what was asked."""
    REFUSED = 1
    """The server said no, there is no such thing, or the answer is no (as of ``health``)."""
    USAGE = 2
    """The command, a flag or a setting makes no sense; nothing was done."""
    UNAVAILABLE = 69
    """No server answers, or it is not able to now."""
    INTERNAL = 70
    """A fault of the program's own."""
    CANNOT_START = 78
    """The server, a migration, a backup or a restore was refused: address in use, database refused, no directory."""
    INTERRUPTED = 130
    """Ctrl-C."""
