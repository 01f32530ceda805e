"""What was looked at, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Level"]


class Level(StrEnum):
    """How bad it is."""

    OK = "OK"
    WARNING = "WARNING"
    """Nothing is lost or refused yet; somebody should look."""
    ERROR = "ERROR"
    """A server can't start, refuses calls, or work stands still until somebody acts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: ``what`` in a word or two, what was ``found``, and the ``remedy``, empty if all is well."""

    level: Level
    what: str
    found: str
    remedy: str = ""
