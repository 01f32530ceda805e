"""One change at a time of a path, from the look at it to the effect, in the order in which they were asked for.

On the event loop, not in threads: whoever waits holds no thread of the pool, so that however
many calls want one path, the one that holds it always finds a thread to go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agenttx_server.tools.builtin.sandbox_path import SandboxPath

__all__ = ["PathLocks"]


class _Claim:
    """What one change holds or waits for; ``blockers`` counts the earlier claims that are in its way."""

    __slots__ = ("_blocked", "blockers", "free", "paths")

    def __init__(self, paths: tuple[SandboxPath, ...]) -> None:
        self.paths = paths
        self.blockers = 0
        self.free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._blocked: list[_Claim] = []

    def block(self, later: _Claim) -> None:
        """Be in the way of a later claim if a path of one is, or is above, a path of the other."""
        if any(mine.contains(other) or other.contains(mine) for mine in self.paths for other in later.paths):
            self._blocked.append(later)
            later.blockers += 1

    def release(self) -> None:
        """Be in nobody's way any more."""
        for later in self._blocked:
            later.blockers -= 1
            if not later.blockers and not later.free.done():
                later.free.set_result(None)


class PathLocks:
    """Exclusive locks on paths with all beneath them, for the calls of one event loop.

    All paths of a change are claimed at once, and a claim waits for earlier ones only: there is
    no order of locks to be kept, and nobody waits in a circle or is overtaken for ever.
    """

    def __init__(self) -> None:
        self._claims: dict[_Claim, None] = {}

    @asynccontextmanager
    async def held(self, *paths: SandboxPath) -> AsyncIterator[None]:
        """Hold paths; a wait that is cancelled gives its place up."""
        claim = _Claim(paths)
        for earlier in self._claims:
            earlier.block(claim)
        self._claims[claim] = None
        try:
            if claim.blockers:
                await claim.free
            yield
        finally:
            del self._claims[claim]
            claim.release()
