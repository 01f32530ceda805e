"""Turns bearer tokens into identities, asking the store seldom."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from agenttx_server.access.errors import Unauthenticated
from agenttx_server.access.identity import Identity
from agenttx_server.access.tokens import TokenRecord, TokenStore, id_of
from agenttx_server.engine.errors import LimitExceeded
from agenttx_server.engine.ports import Clock

__all__ = ["TokenVerifier"]

FRESH_SECONDS = 2.0
"""How long a record is believed: so long a revoked token may go on."""
UNKNOWN_FRESH_SECONDS = 0.5
"""Less, so that a token works soon after it was made; enough that one wrong token can't keep the database busy."""
MOST_KEPT = 4096
MOST_WAITING = 256
MOST_LOOKUPS = 4
"""At once, of all callers: made-up tokens must not take the readers from those with good ones."""


@dataclass(frozen=True, slots=True)
class _Known:
    record: TokenRecord | None
    identity: Identity | None
    fresh_until: float


class TooManyUnknown(LimitExceeded):
    """So many tokens wait to be looked up that nobody waits with them."""

    retry_after_seconds = 1.0


class TokenVerifier:
    """Checks tokens against records that are at most some seconds old. For one event loop."""

    def __init__(self, store: TokenStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._lookups = asyncio.Semaphore(MOST_LOOKUPS)
        self._under_way: dict[str, asyncio.Task[_Known]] = {}

    def known(self, token: str) -> Identity | None:
        """Return who presents a token if that is known without asking the store; None if it must be asked.

        Raises Unauthenticated: it is known that the token is no good.
        """
        token_id = id_of(token)
        if token_id is None:
            raise Unauthenticated("invalid", "the token in the authorization header is not valid")
        known = self._known.get(token_id)
        if known is None or known.fresh_until <= self._clock.monotonic():
            return None
        return self._judged(token, known)

    async def verify(self, token: str) -> Identity:
        """Return who presents a token, asking the store if need be.

        Raises Unauthenticated, or StoreUnavailable: whether it is good can't be known now.
        """
        token_id = id_of(token)
        if token_id is None:
            raise Unauthenticated("invalid", "the token in the authorization header is not valid")
        known = self._known.get(token_id)
        if known is not None and known.fresh_until > self._clock.monotonic():
            return self._judged(token, known)
        looking = self._under_way.get(token_id)
        if looking is None:
            if len(self._under_way) >= MOST_WAITING:
                raise TooManyUnknown("too many unknown tokens are being checked", reason="OVERLOADED")
            looking = self._under_way[token_id] = asyncio.create_task(self._look(token_id))
            looking.add_done_callback(lambda _: self._under_way.pop(token_id, None))
        # Shielded: a caller that leaves must not end the look of others.
        return self._judged(token, await asyncio.shield(looking))

    async def _look(self, token_id: str) -> _Known:
        async with self._lookups:
            record = await self._store.find_token(token_id)
        fresh = UNKNOWN_FRESH_SECONDS if record is None else FRESH_SECONDS
        known = _Known(record, None if record is None else record.identity(), self._clock.monotonic() + fresh)
        self._known[token_id] = known
        self._known.move_to_end(token_id)
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return known

    def _judged(self, token: str, known: _Known) -> Identity:
        record, identity = known.record, known.identity
        if record is None or identity is None or not record.is_of(token):
            raise Unauthenticated("invalid", "the token in the authorization header is not valid")
        # Said only to who has the secret.
        if record.revoked_at is not None:
            raise Unauthenticated("revoked", "the token was revoked")
        if record.expires_at is not None and record.expires_at <= self._clock.now():
            raise Unauthenticated("expired", "the token has expired")
        return identity
