"""Which tools workers have offered lately to any server of the database, those that have ended included.

A worker meets one server after another, and none at the moment in which a server has just started. A call of its tool that
comes to a server which has not met it yet is no call of a tool that there is not: it waits, as for any worker that is away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from agenttx_server.engine.ports import Clock, StoreUnavailable
from agenttx_server.engine.records import MicrosecondsUtc

__all__ = ["OfferedToolStore", "ToolsOfferedBefore"]

_LOGGER = logging.getLogger(__name__)

REMEMBERED_SECONDS = 86_400.0
"""How long after it was last offered a tool counts as one whose worker is away, and not as one that there is not."""
RENEWAL_SECONDS = 3_600.0
# A worker's greeting waits for the note, and its patience has an end.
NOTE_SECONDS = 2.0


class OfferedToolStore(Protocol):
    """Where it is kept, for all servers."""

    async def note_offered_tools(
        self, tenant: str, names: Sequence[str], now: MicrosecondsUtc, forget_before: MicrosecondsUtc
    ) -> None:
        """Note that tools are offered now, and forget what was last offered before a time. Raises StoreUnavailable."""

    async def when_tool_was_offered(self, tenant: str, name: str) -> MicrosecondsUtc | None:
        """Return when a tool was last noted as offered, None if never. Raises StoreUnavailable."""


class ToolsOfferedBefore:
    """Remembers tools by tenant and name. A database that does not answer makes it forget, and nothing worse."""

    def __init__(self, store: OfferedToolStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._noted: dict[tuple[str, str], MicrosecondsUtc] = {}

    async def note(self, tenant: str, names: Iterable[str]) -> None:
        """Note that tools are offered now; to be called before the server shows them. Bounded in time."""
        now = self._clock.now()
        renewed = _before(now, RENEWAL_SECONDS)
        due = [name for name in names if self._noted.get((tenant, name), 0) <= renewed]
        if not due:
            return
        try:
            async with asyncio.timeout(NOTE_SECONDS):
                await self._store.note_offered_tools(tenant, due, now, _before(now, REMEMBERED_SECONDS))
        except (StoreUnavailable, TimeoutError) as error:
            _LOGGER.warning(
                "the tools that are offered could not be noted: %s", str(error) or "no answer in time"
            )
            return
        # Those that are due again are left out: what has ended is not kept for ever.
        self._noted = {key: at for key, at in self._noted.items() if at > renewed}
        self._noted.update({(tenant, name): now for name in due})

    async def was_offered(self, tenant: str, name: str) -> bool:
        """Whether a worker has offered a tool lately, to whichever server."""
        try:
            at = await self._store.when_tool_was_offered(tenant, name)
        except StoreUnavailable as error:
            _LOGGER.warning("whether a tool was offered before could not be found out: %s", error)
            return False
        return at is not None and at > _before(self._clock.now(), REMEMBERED_SECONDS)

    async def keep(self, offered: Callable[[], Iterable[tuple[str, Sequence[str]]]]) -> None:
        """Note every so often what is offered, a tenant and its tools at a time, until cancelled."""
        while True:
            await self._clock.sleep(RENEWAL_SECONDS)
            for tenant, names in offered():
                await self.note(tenant, names)


def _before(now: MicrosecondsUtc, seconds: float) -> MicrosecondsUtc:
    return MicrosecondsUtc(now - int(seconds * 1_000_000))
