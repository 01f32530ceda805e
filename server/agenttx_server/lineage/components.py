"""Which roots have to do with one another behind barriers: those of one file or group, and what these have in common. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from agenttx_server.lineage.plan import Plan

__all__ = ["Components", "can_be_told_apart"]


def can_be_told_apart(plan: Plan) -> bool:
    """Whether the groups of roots are known before anything behind a barrier is called.

    A file's records are of its roots whatever becomes of them. Groups by a field are known where no barrier is above.
    """
    return not any(
        plan.actions[name].reduce is not None and plan.topology.upstream[name] & plan.barriers
        for name in plan.barriers
    )


class Components:
    """Puts roots that share a key together. What is kept of a root is a few numbers, and of a key 16 bytes.

    Roots are added in their order; a component is ordered by its first root.
    """

    def __init__(self) -> None:
        self._places: list[int] = []
        self._leader: list[int] = []
        self._first_with: dict[bytes, int] = {}

    def add(self, place: int, keys: Iterable[str]) -> None:
        """Add a root; without keys it stands alone."""
        number = len(self._places)
        self._places.append(place)
        self._leader.append(number)
        for key in keys:
            digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
            other = self._find(self._first_with.setdefault(digest, number))
            one = self._find(number)
            self._leader[max(one, other)] = min(one, other)

    def ranges(self) -> list[list[tuple[int, int]]]:
        """The roots of each component, as first and last places of those that stand beside one another."""
        found: dict[int, list[tuple[int, int]]] = {}
        before = -1
        for number, place in enumerate(self._places):
            leader = self._find(number)
            ranges = found.setdefault(leader, [])
            if ranges and leader == before:
                ranges[-1] = (ranges[-1][0], place)
            else:
                ranges.append((place, place))
            before = leader
        return list(found.values())

    def _find(self, number: int) -> int:
        while (leader := self._leader[number]) != number:
            # Halved on the way, so that no chain stays long.
            self._leader[number] = self._leader[leader]
            number = leader
        return number
