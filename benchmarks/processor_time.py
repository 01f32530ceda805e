"""Processor time of whole systems: a process, those that it started, and PostgreSQL's own for a database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["seconds_of_process", "seconds_of_system"]

_PROC = Path("/proc")


def seconds_of_process(process: int) -> float:
    """Return what the threads of a process have used; 0 if it has ended."""
    seconds = 0.0
    for thread in _listed(_PROC / str(process) / "task"):
        seconds += int((_read(thread / "schedstat").split() or ["0"])[0]) / 1e9
    return seconds


def seconds_of_system(process: int, database: str = "") -> float:
    """Return what a process, its descendants and the backends of a PostgreSQL database on this machine have used.

    Only of those that still run: compared before and after, it is what was used between.
    """
    parents = {}
    backends = set()
    for path in _listed(_PROC):
        if path.name.isdigit():
            number = int(path.name)
            # The name in parentheses may hold anything.
            fields = _read(path / "stat").rpartition(")")[2].split()
            parents[number] = int(fields[1]) if fields else 0
            command = _read(path / "cmdline")
            if database and command.startswith("postgres:") and database in command:
                backends.add(number)
    system = {process} | backends
    while more := {number for number, parent in parents.items() if parent in system} - system:
        system |= more
    return sum(map(seconds_of_process, system))


def _listed(directory: Path) -> Iterator[Path]:
    try:
        yield from directory.iterdir()
    except OSError:  # it has ended
        return


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
