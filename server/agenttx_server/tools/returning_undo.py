"""Runs undo actions again that were held because no worker had them, once one is back.

A rewind that is held by nothing else is thereby completed, without a person.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Protocol

from agenttx_server.engine.errors import EngineError
from agenttx_server.engine.failure_text import UNDO_UNAVAILABLE
from agenttx_server.engine.ports import StoreUnavailable, TransactionStore
from agenttx_server.engine.records import UndoState
from agenttx_server.engine.requests import (
    CompensationAnswer,
    RetryCompensationRequest,
    compensation_id,
)

__all__ = ["ReturningUndo"]

_LOGGER = logging.getLogger(__name__)

PAGE = 200
# A worker may have been there and busy, and a database may not have answered: neither tells anybody.
SECONDS_BETWEEN_LOOKS = 30.0


class Compensations(Protocol):
    """The part of the coordinator that is needed."""

    async def retry_compensation(self, request: RetryCompensationRequest) -> CompensationAnswer:
        """Run a failed undo action again."""


class ReturningUndo:
    """Looks for held undo actions when a worker offers some, and now and then while any are offered."""

    def __init__(self) -> None:
        self._offered: set[str] = set()
        self._news = asyncio.Event()

    def offered(self, names: Collection[str]) -> None:
        """Note that undo actions can be run now."""
        self._offered.update(names)
        self._news.set()

    async def run(self, store: TransactionStore, compensations: Compensations) -> None:
        """Look until cancelled."""
        while True:
            try:
                async with asyncio.timeout(SECONDS_BETWEEN_LOOKS if self._offered else None):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            try:
                await self._look(store, compensations)
            except (EngineError, StoreUnavailable) as error:
                _LOGGER.warning("held undo actions could not be looked for: %s", error)

    async def _look(self, store: TransactionStore, compensations: Compensations) -> None:
        cursor = ""
        while True:
            page = await store.list_compensations("", None, frozenset({UndoState.FAILED}), cursor, PAGE)
            for record, undo in page.undo:
                waits = undo.hint is not None and undo.hint.rule == UNDO_UNAVAILABLE
                if waits and undo.undo_name in self._offered:
                    await self._retry(
                        compensations,
                        RetryCompensationRequest(
                            record.transaction_id, compensation_id(undo), principal=record.principal
                        ),
                    )
            cursor = page.next_cursor
            if not cursor:
                return

    async def _retry(self, compensations: Compensations, request: RetryCompensationRequest) -> None:
        try:
            await compensations.retry_compensation(request)
        except EngineError as error:  # settled meanwhile, by a person or another server
            _LOGGER.info("undo action %s was not run again: %s", request.compensation_id, error)
