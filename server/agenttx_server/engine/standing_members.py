"""What the members of a group that stand have used, together: whether one more may stand is told without asking each.

Of thousands of members each meets all lower ones: compared in pairs that is the square of their number.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.records import StateRead, StateWrite
from agenttx_server.engine.touches import Touched, itself_and_above, touched_by
from agenttx_server.engine.transaction import touched_conflict

__all__ = ["MemberUse", "StandingMembers", "uses_by_step"]


@dataclass(frozen=True, slots=True)
class MemberUse:
    """What one member read, wrote and touched."""

    reads: Sequence[StateRead] = ()
    writes: Sequence[StateWrite] = ()
    outside: Touched = Touched(frozenset(), frozenset())

    def conflict(self, other: MemberUse) -> str | None:
        """Return a key that one of two members wrote and the other used."""
        key = touched_conflict(self.reads, self.writes, other.reads, other.writes)
        return self.outside.conflict(other.outside) if key is None else key


def uses_by_step(reads: Iterable[StateRead], writes: Iterable[StateWrite]) -> dict[int, MemberUse]:
    """Return what each step used; one that used nothing is not there."""
    read: dict[int, list[StateRead]] = {}
    written: dict[int, list[StateWrite]] = {}
    for item in reads:
        read.setdefault(item.step_id, []).append(item)
    for write in writes:
        written.setdefault(write.step_id, []).append(write)
    return {
        step: MemberUse(read.get(step, ()), written.get(step, ()), touched_by(read.get(step, ())))
        for step in {*read, *written}
    }


class StandingMembers:
    """The members that stand so far, in step order."""

    def __init__(self) -> None:
        self._members: list[tuple[int, MemberUse]] = []
        self._written: list[str] = []
        self._is_written: set[str] = set()
        self._read: set[str] = set()
        self._scanned: set[str] = set()
        self._touched: set[str] = set()
        self._above_touched: set[str] = set()
        self._touch_written: set[str] = set()
        self._above_touch_written: set[str] = set()

    def add(self, step: int, use: MemberUse) -> None:
        """Have a member stand."""
        self._members.append((step, use))
        for write in use.writes:
            if write.key not in self._is_written:
                self._is_written.add(write.key)
                insort(self._written, write.key)
        for read in use.reads:
            (self._scanned if read.is_prefix else self._read).add(read.key)
        for key in use.outside.touched:
            self._touched.add(key)
            self._above_touched.update(itself_and_above(key))
        for key in use.outside.written:
            self._touch_written.add(key)
            self._above_touch_written.update(itself_and_above(key))

    def clash(self, use: MemberUse) -> tuple[int, str] | None:
        """Return the lowest member that conflicts with one more, and the key; None if that may stand too."""
        if not self._clashes(use):
            return None
        found = ((step, use.conflict(other)) for step, other in self._members)
        return next((step, key) for step, key in found if key is not None)

    def _clashes(self, use: MemberUse) -> bool:
        return (
            any(self._uses(write.key) for write in use.writes)
            or any(self._wrote(read) for read in use.reads)
            or any(
                key in self._above_touched or any(path in self._touched for path in itself_and_above(key))
                for key in use.outside.written
            )
            or any(
                key in self._above_touch_written
                or any(path in self._touch_written for path in itself_and_above(key))
                for key in use.outside.touched
            )
        )

    def _uses(self, key: str) -> bool:
        if key in self._is_written or key in self._read:
            return True
        return bool(self._scanned) and any(start in self._scanned for start in _starts(key))

    def _wrote(self, read: StateRead) -> bool:
        if not read.is_prefix:
            return read.key in self._is_written
        at = bisect_left(self._written, read.key)
        return at < len(self._written) and self._written[at].startswith(read.key)


def _starts(key: str) -> Iterator[str]:
    return (key[:length] for length in range(len(key) + 1))
