"""Calls of one step that run side by side, as the nodes of an embedded graph do: what each sees, and who disturbed whom.

Each is a scope, with all that is called inside it. None sees what another one writes, as members of a group don't; and as
those they are judged in order: of two that used one key, one of them writing, the later one loses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from agenttx_server.engine.frozen import dataclass
from agenttx_server.engine.records import StateRead, StateWrite
from agenttx_server.engine.standing_members import MemberUse, StandingMembers
from agenttx_server.engine.state_overlay import StateOverlay
from agenttx_server.engine.touches import touched_by

__all__ = ["Clash", "SiblingCalls", "around"]


def around(scope: str) -> Iterator[str]:
    """Give a scope and those that it lies in, the innermost first; what is behind the last slash counts for nothing."""
    end = scope.rfind("/")
    while end >= 0:
        yield scope[: end + 1]
        end = scope.rfind("/", 0, end)


@dataclass(frozen=True, slots=True)
class Clash:
    """A scope that used ``key``, which the scope ``lower`` used before it, one of them writing; both by their places."""

    place: int
    lower: int
    key: str


class SiblingCalls:
    """The scopes that are kept apart in one run of a step, and what its calls used."""

    def __init__(self) -> None:
        self._overlays: dict[str, StateOverlay] = {}
        # By scope, the scopes in it that are kept apart, itself among them: of thousands none is looked for among all.
        self._apart: dict[str, set[str]] = {}
        self._uses: dict[int, MemberUse] = {}

    def overlay(self, scope: str) -> StateOverlay | None:
        """Return what calls of a scope see, None where it is what the whole step does."""
        if not self._overlays:
            return None
        return next((self._overlays[known] for known in around(scope) if known in self._overlays), None)

    def keep_apart(self, scopes: Iterable[str], seen: StateOverlay) -> None:
        """Have each of these see what is there now, and what it writes itself."""
        for scope in scopes:
            if scope not in self._overlays:
                self._keep(scope, seen.copy())

    def see_below(self, scope: str, lower: Iterable[str], seen: StateOverlay) -> None:
        """Have one that begins anew see what those below it wrote, and nothing of its own."""
        self.forget(scope)
        overlay = seen.copy()
        self._keep(scope, overlay)
        for other in lower:
            if other in self._overlays:
                overlay.take_all(self._overlays[other])

    def together(self, scopes: Iterable[str], seen: StateOverlay) -> None:
        """Have all that they wrote be seen."""
        for scope in scopes:
            overlay = self._overlays.get(scope)
            if overlay is not None:
                seen.take_all(overlay)
            self.forget(scope)

    def forget(self, scope: str) -> None:
        """Keep a scope, and those inside it, apart no more; what they wrote is seen by nobody."""
        if not scope:
            self._overlays, self._apart = {}, {}
        for known in tuple(self._apart.get(scope, ())):
            del self._overlays[known]
            for place in around(known):
                self._apart[place].discard(known)

    def _keep(self, scope: str, overlay: StateOverlay) -> None:
        self._overlays[scope] = overlay
        for place in around(scope):
            self._apart.setdefault(place, set()).add(scope)

    def note(self, sub_step: int, reads: Sequence[StateRead], writes: Sequence[StateWrite]) -> None:
        """Say what a call used."""
        self._uses[sub_step] = MemberUse(reads, writes, touched_by(reads))

    def knows(self, sub_step: int) -> bool:
        """Whether it was said what a call used."""
        return sub_step in self._uses

    def forget_call(self, sub_step: int) -> None:
        """Leave out a call that counts no more."""
        self._uses.pop(sub_step, None)

    def clashes(self, calls: Mapping[int, Collection[int]], behind: Collection[int]) -> list[Clash]:
        """Return who loses, in order.

        Args:
            calls: the calls made in each scope, by the scope's place.
            behind: those that were run again behind lower ones, which they clash with no more.
        """
        standing = StandingMembers()
        found = []
        for place in sorted(calls):
            use = self._use_of(calls[place])
            clash = None if place in behind else standing.clash(use)
            if clash is None:
                standing.add(place, use)
            else:
                found.append(Clash(place, *clash))
        return found

    def _use_of(self, calls: Collection[int]) -> MemberUse:
        uses = [self._uses[call] for call in calls if call in self._uses]
        reads = [read for use in uses for read in use.reads]
        return MemberUse(reads, [write for use in uses for write in use.writes], touched_by(reads))
