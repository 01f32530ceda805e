"""The outside world: what the tools' log says happened, line by line.

Effects that came too late, after they had been called off, did not happen (tests.support.crash_tools says how that is told).
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Line", "World"]


@dataclass(frozen=True)
class Line:
    """One thing that happened; ``number`` is its place among all."""

    number: int
    what: str
    transaction: str
    step: int
    attempt: int
    key: str
    entry: str
    pid: int
    seen: int | None = None

    def text(self) -> bytes:
        """Return it as it stands in the log."""
        return (
            json.dumps({name: value for name, value in vars(self).items() if name != "number"}).encode()
            + b"\n"
        )


class World:
    """Reads the log as it grows. ``refused`` counts effects that came too late."""

    def __init__(self, path: Path, *, refuses_late: bool = False) -> None:
        self.lines: list[Line] = []
        self._path = path
        self._read = 0
        self._by_entry: dict[str, list[Line]] = defaultdict(list)
        self._by_transaction: dict[str, list[Line]] = defaultdict(list)
        self.refused = 0
        self._refuses_late = refuses_late
        self._called_off: dict[str, int] = {}

    def look(self) -> None:
        """Read what was appended since."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for text in file:
                if not text.endswith(b"\n"):
                    break
                place, self._read = self._read, self._read + len(text)
                line = Line(number=len(self.lines), **json.loads(text))
                if not self._happened(line, place):
                    continue
                self.lines.append(line)
                self._by_entry[line.entry].append(line)
                self._by_transaction[line.transaction].append(line)

    def has_happened(self, entry: str) -> bool:
        """Say whether there was an effect, as a person finds out before deciding for it.

        Where the world refuses late effects it is called off first: the worker that was to do it may still be at it.
        """
        if self._refuses_late:
            line = Line(0, "called_off", "", 0, 0, "", entry, 0)
            with self._path.open("ab", buffering=0) as file:
                file.write(line.text())
        self.look()
        return any(line.what == "effect" for line in self.of_entry(entry))

    def _happened(self, line: Line, place: int) -> bool:
        if line.what == "called_off":
            self._called_off[line.entry] = place
            return False
        if line.what == "undo":
            self._called_off[line.key] = place
        if line.what != "effect" or line.seen is None:
            return True
        called_off = max(self._called_off.get(name, -1) for name in (line.entry, line.key))
        self.refused += called_off >= line.seen
        return called_off < line.seen

    def of_entry(self, entry: str) -> list[Line]:
        return self._by_entry.get(entry, [])

    def of_transaction(self, transaction_id: str) -> list[Line]:
        return self._by_transaction.get(transaction_id, [])

    def transactions(self) -> set[str]:
        return set(self._by_transaction)
